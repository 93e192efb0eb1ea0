package pickle

import (
	"bytes"
	"hash/maphash"
)

// interner gives equal strings equal small numbers. All text lies in one
// slice; the table is open addressing over (hash, id) pairs. The seed is
// random so that a hostile file cannot choose collisions; ids depend only on
// the order of arrival.
type interner struct {
	seed  maphash.Seed
	table []uint64 // high half: hash, low half: id+1; 0 = empty
	ends  []int    // end of each string in text
	text  []byte
}

func newInterner(known []string) *interner {
	s := &interner{seed: maphash.MakeSeed(), table: make([]uint64, 1024)}
	for _, k := range known {
		s.id([]byte(k))
	}
	return s
}

func (s *interner) bytes(id uint32) []byte {
	start := 0
	if id > 0 {
		start = s.ends[id-1]
	}
	return s.text[start:s.ends[id]]
}

// id returns the number of a string, giving it the next one if it is new.
func (s *interner) id(b []byte) uint32 {
	h := maphash.Bytes(s.seed, b)
	tagged := h &^ 0xffffffff
	mask := uint64(len(s.table) - 1)
	i := h & mask
	for ; s.table[i] != 0; i = (i + 1) & mask {
		if e := s.table[i]; e&^0xffffffff == tagged {
			if id := uint32(e) - 1; bytes.Equal(s.bytes(id), b) {
				return id
			}
		}
	}
	id := uint32(len(s.ends))
	s.text = append(s.text, b...)
	s.ends = append(s.ends, len(s.text))
	s.table[i] = tagged | uint64(id+1)
	if len(s.ends)*2 > len(s.table) {
		s.grow()
	}
	return id
}

func (s *interner) grow() {
	t := make([]uint64, 2*len(s.table))
	mask := uint64(len(t) - 1)
	for id := range s.ends {
		h := maphash.Bytes(s.seed, s.bytes(uint32(id)))
		i := h & mask
		for t[i] != 0 {
			i = (i + 1) & mask
		}
		t[i] = h&^0xffffffff | uint64(id+1)
	}
	s.table = t
}
