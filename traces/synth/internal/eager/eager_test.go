package eager

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"allocsim/traces"
)

// TestRules runs little programs and prints their requests, one line per
// operation: +bytes for an allocation, -bytes for a free. Each line of a
// program is
//
//	name = op arguments      gives the result a name
//	op arguments             drops the result
//
// and the operations are those of the engine. "autocast bf16" and "device
// a100" as command arguments set the stage.
func TestRules(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "run" {
				t.Fatalf("unknown command %s", d.Cmd)
			}
			dev := H200
			var amp DType
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "bf16":
					amp = BF16
				case "fp16":
					amp = F16
				case "ampere":
					dev = Device{SMs: 108, GEMMWorkspace: 8519680, LtWorkspace: 1 << 20}
				default:
					t.Fatalf("unknown argument %s", a.Key)
				}
			}
			p := &script{t: t, e: New(context.Background(), dev, 0), names: map[string]*Tensor{}}
			tr, err := p.e.Run(func() error {
				var lines []string
				for _, l := range strings.Split(d.Input, "\n") {
					lines = append(lines, strings.TrimSpace(l))
				}
				p.e.Autocast(amp, func() { p.run(lines) })
				return nil
			})
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			return p.print(tr)
		})
	})
}

type script struct {
	t     *testing.T
	e     *Engine
	names map[string]*Tensor
	marks []int // event index at the start of each line
	lines []string
}

var dtypes = map[string]DType{"f32": F32, "f16": F16, "bf16": BF16, "i64": I64, "bool": Bool}

func (p *script) run(lines []string) {
	for _, l := range lines {
		if l == "" {
			continue
		}
		p.marks = append(p.marks, p.e.Events())
		p.lines = append(p.lines, l)
		p.line(l)
	}
}

func (p *script) line(l string) {
	e := p.e
	name, rest, ok := strings.Cut(l, "=")
	if !ok {
		rest = l
	}
	f := strings.Fields(rest)
	name = strings.TrimSpace(name)
	arg := func(i int) *Tensor {
		if f[i] == "-" {
			return nil
		}
		t := p.names[f[i]]
		if t == nil {
			p.t.Fatalf("no tensor %s in %q", f[i], l)
		}
		return t
	}
	num := func(i int) int64 {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		return n
	}
	shape := func(from int) []int64 {
		var s []int64
		for i := from; i < len(f); i++ {
			s = append(s, num(i))
		}
		return s
	}
	var out *Tensor
	switch f[0] {
	case "param":
		out = e.Retain(e.Param(dtypes[f[1]], shape(2)...))
	case "input": // a tensor that wants a gradient, as an inner activation does
		out = e.Empty(dtypes[f[1]], shape(2)...)
		out.RequiresGrad = true
	case "empty":
		out = e.Empty(dtypes[f[1]], shape(2)...)
	case "transpose":
		out = e.Transpose(arg(1), int(num(2)), int(num(3)))
	case "linear":
		out = e.Linear(arg(1), arg(2), arg(3))
	case "addmm":
		out = e.Addmm(arg(1), arg(2), arg(3))
	case "add":
		out = e.Add(arg(1), arg(2))
	case "add_":
		out = e.AddInPlace(arg(1), arg(2))
		name = ""
	case "mul":
		out = e.Mul(arg(1), arg(2))
	case "pow":
		out = e.Pow(arg(1))
	case "rsqrt":
		out = e.Rsqrt(arg(1))
	case "mean":
		out = e.MeanLast(arg(1))
	case "pool":
		out = e.MeanHW(arg(1))
	case "gelu":
		out = e.Gelu(arg(1))
	case "silu":
		out = e.Silu(arg(1))
	case "tanh":
		out = e.Tanh(arg(1))
	case "relu_":
		out = e.ReluInPlace(arg(1))
		name = ""
	case "hardswish_":
		out = e.HardswishInPlace(arg(1))
		name = ""
	case "dropout":
		out = e.Dropout(arg(1), 0.1, true)
	case "layer_norm":
		out = e.LayerNorm(arg(1), arg(2), arg(3))
	case "batch_norm":
		out = e.BatchNorm(arg(1), arg(2), arg(3), true)
	case "conv2d":
		out = e.Conv2d(arg(1), arg(2), arg(3), ConvSpec{Stride: num(4), Padding: num(5), Groups: num(6)})
	case "max_pool":
		out = e.MaxPool(arg(1), 3, 2, 1)
	case "embedding":
		out = e.Embedding(arg(1), arg(2))
	case "expand":
		out = e.Expand(arg(1), shape(2)...)
	case "sdpa":
		out = e.SDPA(arg(1), arg(2), arg(3), nil, true, 0)
	case "sdpa_mask":
		out = e.SDPA(arg(1), arg(2), arg(3), arg(4), false, 0)
	case "cross_entropy":
		out = e.CrossEntropy(arg(1), arg(2))
	case "cat":
		out = e.Cat(int(num(1)), arg(2), arg(3))
	case "slice":
		out = e.Slice(arg(1), -1, num(2), num(3))
	case "view":
		out = e.View(arg(1), shape(2)...)
	case "reshape":
		out = e.Reshape(arg(1), shape(2)...)
	case "to":
		out = e.To(arg(1), dtypes[f[2]])
	case "drop":
		for i := 1; i < len(f); i++ {
			e.Drop(arg(i))
			delete(p.names, f[i])
		}
	case "backward": // with a gradient of the result's shape
		e.Do(func() {
			t := arg(1)
			var g *Tensor
			if len(t.Shape) > 0 {
				g = e.Empty(t.DType, t.Shape...)
			}
			e.Backward(t, g, false)
		})
	case "checkpoint": // checkpoint x w b: gelu(linear(x)) twice
		w, b := arg(2), arg(3)
		out = e.Checkpoint(arg(1), nil, func(x *Tensor) *Tensor {
			return e.Scope(func() *Tensor {
				y := e.Linear(x, w, b)
				g := e.Gelu(y)
				e.Drop(y)
				return e.Linear(g, w, b)
			})
		})
	default:
		p.t.Fatalf("unknown operation %q", l)
	}
	if out == nil {
		return
	}
	if ok && name != "" {
		p.names[name] = out
	} else if name != "" {
		e.Drop(out)
	}
}

func (p *script) print(tr *traces.Trace) string {
	var b strings.Builder
	sizes := make([]int64, tr.NumBlocks)
	for i, l := range p.lines {
		end := len(tr.Events)
		if i+1 < len(p.marks) {
			end = p.marks[i+1]
		}
		fmt.Fprintf(&b, "%s:", l)
		for _, ev := range tr.Events[p.marks[i]:end] {
			if ev.Kind == traces.Alloc {
				sizes[ev.ID] = ev.Size
				fmt.Fprintf(&b, " +%d", ev.Size)
			} else {
				fmt.Fprintf(&b, " -%d", sizes[ev.ID])
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestIterStrides checks layouts against PyTorch's own answers.
func TestIterStrides(t *testing.T) {
	e := New(context.Background(), H200, 0)
	x := e.Empty(F32, 2, 3, 4)
	perm := e.Transpose(x, 0, 1) // [3,2,4], strides 4,12,1
	b := e.Empty(F32, 3, 2, 4)
	for _, c := range []struct {
		name string
		ins  []*Tensor
		want string
	}{
		{"contiguous", []*Tensor{b, b}, "[8 4 1]"},
		{"permuted", []*Tensor{perm, perm}, "[4 12 1]"},
		{"permuted first", []*Tensor{perm, b}, "[4 12 1]"},
		{"contiguous first", []*Tensor{b, perm}, "[8 4 1]"},
		{"half of a permuted tensor", []*Tensor{e.Slice(perm, -1, 0, 2)}, "[2 6 1]"},
		{"broadcast", []*Tensor{perm, e.Empty(F32, 4)}, "[4 12 1]"},
	} {
		shape := c.ins[0].Shape
		if got := fmt.Sprint(iterStrides(shape, c.ins...)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
