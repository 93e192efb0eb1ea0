package kernels_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"allocsim/traces/kernels"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/h200.txt again")

// observed is one call on the H200: its arguments and results, and what the
// allocator saw between its start and its end.
type observed struct {
	Op string                     `json:"op"`
	A  map[string]json.RawMessage `json:"a"`
	O  json.RawMessage            `json:"o"`
	Ev [][]json.RawMessage        `json:"ev"`
}

var types = map[string]kernels.DType{"f32": kernels.F32, "f16": kernels.F16, "bf16": kernels.BF16, "f64": kernels.F64, "i64": kernels.I64,
	"i32": kernels.I32, "i16": kernels.I16, "i8": kernels.I8, "u8": kernels.U8, "b": kernels.Bool, "c64": kernels.C64, "c128": kernels.C128}

func tensorOf(b json.RawMessage) *kernels.Tensor {
	var w struct {
		T []json.RawMessage `json:"t"`
	}
	if json.Unmarshal(b, &w) != nil || len(w.T) < 2 {
		return nil
	}
	var name string
	t := &kernels.Tensor{}
	json.Unmarshal(w.T[0], &name)
	t.DType = types[name]
	json.Unmarshal(w.T[1], &t.Shape)
	if len(w.T) > 2 {
		json.Unmarshal(w.T[2], &t.Stride)
	}
	if t.Stride == nil {
		t.Stride = make([]int64, len(t.Shape))
		n := int64(1)
		for i := len(t.Shape) - 1; i >= 0; i-- {
			t.Stride[i] = n
			n *= max(t.Shape[i], 1)
		}
	}
	t.Host = len(w.T) > 3
	return t
}

func argOf(b json.RawMessage) (a kernels.Arg) {
	switch b[0] {
	case '{':
		a.Tensor = tensorOf(b)
	case '[':
		var l []json.RawMessage
		json.Unmarshal(b, &l)
		for _, e := range l {
			switch e[0] {
			case '{':
				a.Tensors = append(a.Tensors, tensorOf(e))
			case 'n':
				a.Tensors = append(a.Tensors, nil)
			default:
				if x := argOf(e); x.Number != nil {
					a.Ints = append(a.Ints, int64(*x.Number))
				}
			}
		}
	case 't', 'f':
		n := 0.0
		if b[0] == 't' {
			n = 1
		}
		a.Number = &n
	case '"':
		json.Unmarshal(b, &a.Text)
	case 'n':
	default:
		var n float64
		json.Unmarshal(b, &n)
		a.Number = &n
	}
	return a
}

// flatten gives the results and the number of each by its path.
func flatten(b json.RawMessage, path string, out *[]*kernels.Tensor, at map[string]int) {
	var l []json.RawMessage
	if b[0] == '[' && json.Unmarshal(b, &l) == nil {
		for i, e := range l {
			flatten(e, fmt.Sprintf("%s/%d", path, i), out, at)
		}
		return
	}
	at[path] = len(*out)
	*out = append(*out, tensorOf(b))
}

func block(n int64) int64 { return (n + 511) / 512 * 512 }

// peak is the most bytes of blocks that a sequence of requests holds at once.
func peak(steps []int64) (most int64) {
	live := int64(0)
	for _, s := range steps {
		live += s
		most = max(most, live)
	}
	return most
}

// TestH200 compares plans with calls on the H200 (torch 2.11.0+cu130), request by
// request in blocks of 512 bytes. testdata/h200.txt lists, for each operation, how
// many plans are equal and for how many the most bytes that the call held at
// once are within 1 % and 64 KiB; the truth is the run, not the list. What the
// list says must not get worse.
func TestH200(t *testing.T) {
	f, err := os.Open("testdata/h200.jsonl.zst")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	dev := kernels.H200
	type score struct{ calls, equal, near int }
	scores := make(map[string]*score)
	s := bufio.NewScanner(z)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var o observed
		if err := json.Unmarshal(s.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
		op := kernels.Op{Name: o.Op, Args: make(map[string]kernels.Arg)}
		for k, v := range o.A {
			op.Args[k] = argOf(v)
		}
		at := make(map[string]int)
		flatten(o.O, "", &op.Results, at)
		var real, made []string
		var realBytes, madeBytes []int64
		sizes := make(map[int]int64) // of the event that allocated
		results := make(map[int]int64)
		for i, e := range o.Ev {
			var kind string
			var n int64
			json.Unmarshal(e[0], &kind)
			json.Unmarshal(e[1], &n)
			if kind == "f" {
				real = append(real, fmt.Sprintf("-%d", sizes[int(n)]))
				realBytes = append(realBytes, -sizes[int(n)])
				continue
			}
			sizes[i] = block(n)
			realBytes = append(realBytes, block(n))
			var path []int
			if json.Unmarshal(e[2], &path); path != nil {
				k := at["/"+strings.Trim(strings.ReplaceAll(fmt.Sprint(path), " ", "/"), "[]")]
				results[k] = block(n)
				real = append(real, fmt.Sprintf("r%d", k))
				continue
			}
			real = append(real, fmt.Sprintf("+%d", block(n)))
		}
		plan, _ := kernels.Of(&dev, &op)
		var scratch []int64
		for _, st := range plan.Steps {
			switch st.Do {
			case kernels.Result:
				n, ok := results[st.N]
				if !ok {
					continue
				}
				made = append(made, fmt.Sprintf("r%d", st.N))
				madeBytes = append(madeBytes, n)
			case kernels.Scratch:
				scratch = append(scratch, block(st.Bytes))
				made = append(made, fmt.Sprintf("+%d", block(st.Bytes)))
				madeBytes = append(madeBytes, block(st.Bytes))
			case kernels.Drop:
				made = append(made, fmt.Sprintf("-%d", scratch[st.N]))
				madeBytes = append(madeBytes, -scratch[st.N])
			}
		}
		name, _, _ := strings.Cut(o.Op, ".")
		c := scores[name]
		if c == nil {
			c = &score{}
			scores[name] = c
		}
		c.calls++
		if slices.Equal(real, made) {
			c.equal++
		} else if *show != "" && *show == name {
			t.Logf("%s\n%s\nreal %v\nmade %v", name, s.Bytes(), real, made)
		}
		r, m := peak(realBytes), peak(madeBytes)
		if d := max(r-m, m-r); d <= 65536 || float64(d) <= 0.01*float64(r) {
			c.near++
		}
	}
	var b strings.Builder
	b.WriteString("# operation: calls, plans equal request by request, peaks within 1 % or 64 KiB\n")
	var calls, equal, near int
	for _, n := range slices.Sorted(maps.Keys(scores)) {
		c := scores[n]
		fmt.Fprintf(&b, "%s: %d %d %d\n", n, c.calls, c.equal, c.near)
		calls, equal, near = calls+c.calls, equal+c.equal, near+c.near
	}
	fmt.Fprintf(&b, "all: %d %d %d\n", calls, equal, near)
	if *rewrite {
		if err := os.WriteFile("testdata/h200.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile("testdata/h200.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != b.String() {
		got := strings.Split(b.String(), "\n")
		for i, w := range strings.Split(string(want), "\n") {
			if i < len(got) && got[i] != w {
				t.Errorf("got  %s\nwant %s", got[i], w)
			}
		}
	}
}

var show = flag.String("show", "", "print the calls of an operation whose plans differ")
