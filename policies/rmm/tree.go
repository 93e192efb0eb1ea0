package rmm

// tree keeps sets of numbered items in address order, each with a size, and
// finds the first that is large enough: a treap in which every node knows the
// largest size below it. The sets share one node table, so an item is in at
// most one of them; a set is the number of its root, 0 when empty. All
// operations take O(log n) expected time and, once the table has grown, no
// memory.
type tree struct {
	nodes []node
}

type node struct {
	addr                uint64
	size, max           int64
	left, right, parent int32
}

// fit makes room for item n.
func (t *tree) fit(n int32) {
	for int(n) >= len(t.nodes) {
		t.nodes = append(t.nodes, node{})
	}
}

func priority(n int32) uint32 { return uint32(n) * 2654435769 }

// pull recomputes the maximum of n from its children and reports whether it
// changed.
func (t *tree) pull(n int32) bool {
	x := &t.nodes[n]
	m := max(x.size, t.nodes[x.left].max, t.nodes[x.right].max)
	if m == x.max {
		return false
	}
	x.max = m
	return true
}

// insert adds item n to the set.
func (t *tree) insert(root *int32, n int32, addr uint64, size int64) {
	t.fit(n)
	nodes := t.nodes
	p := priority(n)
	link, parent := root, int32(0)
	for *link != 0 && priority(*link) >= p {
		x := &nodes[*link]
		x.max = max(x.max, size)
		parent = *link
		if addr < x.addr {
			link = &x.left
		} else {
			link = &x.right
		}
	}
	rest := *link
	*link = n
	nodes[n] = node{addr: addr, size: size, max: size, parent: parent}
	if rest == 0 {
		return
	}
	// Split the rest by address into the two sides of n.
	l, r := &nodes[n].left, &nodes[n].right
	lp, rp := n, n
	for rest != 0 {
		x := &nodes[rest]
		if x.addr < addr {
			*l, x.parent = rest, lp
			l, lp = &x.right, rest
			rest = x.right
		} else {
			*r, x.parent = rest, rp
			r, rp = &x.left, rest
			rest = x.left
		}
	}
	*l, *r = 0, 0
	for ; lp != n; lp = nodes[lp].parent {
		t.pull(lp)
	}
	for ; rp != n; rp = nodes[rp].parent {
		t.pull(rp)
	}
	t.pull(n)
}

// remove takes item n out of the set.
func (t *tree) remove(root *int32, n int32) {
	nodes := t.nodes
	l, r, parent := nodes[n].left, nodes[n].right, nodes[n].parent
	link := root
	if parent != 0 {
		if link = &nodes[parent].left; *link != n {
			link = &nodes[parent].right
		}
	}
	for l != 0 && r != 0 {
		if priority(l) >= priority(r) {
			*link, nodes[l].parent = l, parent
			link, parent = &nodes[l].right, l
			l = *link
		} else {
			*link, nodes[r].parent = r, parent
			link, parent = &nodes[r].left, r
			r = *link
		}
	}
	*link = l | r
	nodes[l|r].parent = parent
	nodes[0] = node{}
	// Up to the old place of n every maximum is stale.
	above := nodes[n].parent
	for ; parent != above; parent = nodes[parent].parent {
		t.pull(parent)
	}
	t.lower(above, nodes[n].max)
}

// lower recomputes the maxima from n upwards after one below it that was old
// has become smaller.
func (t *tree) lower(n int32, old int64) {
	for n != 0 && t.nodes[n].max == old && t.pull(n) {
		n = t.nodes[n].parent
	}
}

// resize changes the size of item n, and its address within the gap between
// its neighbours.
func (t *tree) resize(n int32, addr uint64, size int64) {
	nodes := t.nodes
	x := &nodes[n]
	old := x.max
	x.addr, x.size = addr, size
	if !t.pull(n) {
		return
	}
	if x.max < old {
		t.lower(x.parent, old)
		return
	}
	for p := x.parent; p != 0 && nodes[p].max < x.max; p = nodes[p].parent {
		nodes[p].max = x.max
	}
}

// first returns the item of the set at the lowest address with at least size
// bytes; 0 if there is none.
func (t *tree) first(root int32, size int64) int32 {
	nodes := t.nodes
	if root == 0 || nodes[root].max < size {
		return 0
	}
	for n := root; ; {
		x := &nodes[n]
		switch {
		case nodes[x.left].max >= size:
			n = x.left
		case x.size >= size:
			return n
		default:
			n = x.right
		}
	}
}

// largest returns the largest size in the set; 0 if it is empty.
func (t *tree) largest(root int32) int64 {
	if root == 0 {
		return 0
	}
	return t.nodes[root].max
}
