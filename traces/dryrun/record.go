package dryrun

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"allocsim/traces/kernels"
)

// record is any line after the first: the fields that are set say its kind.
type record struct {
	// A tensor.
	T      *int64  `json:"T"`
	S      int64   `json:"s"`
	D      string  `json:"d"`
	Z      []int64 `json:"z"`
	Stride []int64 `json:"st"`

	// A frame and a stack.
	F    *int64  `json:"F"`
	File string  `json:"file"`
	Line int     `json:"line"`
	Fn   string  `json:"fn"`
	K    *int64  `json:"K"`
	Fr   []int64 `json:"fr"`
}

// call is an operation.
type call struct {
	Op     string         `json:"op"`
	Thread int            `json:"th"`
	Stream uint64         `json:"st"`
	Args   map[string]arg `json:"a"`
	Result []arg          `json:"r"`
	New    [][2]int64     `json:"new"`
	Stack  *int64         `json:"k"`
}

// lives is what happens to storages between operations.
type lives struct {
	Free   []int64 `json:"f"`
	Resize *int64  `json:"resize"`
	To     int64   `json:"to"`
	Record *int64  `json:"rs"`
	Stream uint64  `json:"st"`
}

// event is a mark of the program or a call of the allocator.
type event struct {
	Name   string  `json:"ev"`
	Value  float64 `json:"value"`
	Pool   int64   `json:"pool"`
	Step   int64   `json:"n"`
	Stream *uint64 `json:"st"`
}

// end is the trailer.
type end struct {
	Complete    bool         `json:"complete"`
	Error       string       `json:"error"`
	Steps       int          `json:"optimizer_steps"`
	Assumptions []assumption `json:"assumptions"`
	Notes       []string     `json:"notes"`
}

type assumption struct {
	Kind  string `json:"kind"`
	Value any    `json:"value"`
	File  string `json:"file"`
	Line  int    `json:"line"`
	Count int    `json:"count"`
	Text  string `json:"text"`
}

// arg is an argument or result as the file writes it: "%12" is a tensor.
type arg struct {
	tensor int64 // -1: none
	number *float64
	text   string
	list   []arg
	isList bool
	isNull bool
}

// maxNest bounds lists in lists.
const maxNest = 8

func (a *arg) UnmarshalJSON(b []byte) error { return a.decode(b, 0) }

func (a *arg) decode(b []byte, depth int) error {
	*a = arg{tensor: -1}
	if len(b) == 0 {
		return errRecord("an empty argument")
	}
	switch b[0] {
	case '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		if len(s) > 1 && s[0] == '%' {
			id, err := strconv.ParseInt(s[1:], 10, 64)
			if err != nil || id < 0 {
				return errRecord("%q is no tensor", s)
			}
			a.tensor = id
			return nil
		}
		a.text = s
	case '[':
		if depth >= maxNest {
			return errRecord("lists nested more than %d deep", maxNest)
		}
		var raw []json.RawMessage
		if err := json.Unmarshal(b, &raw); err != nil {
			return err
		}
		a.isList = true
		a.list = make([]arg, len(raw))
		for i := range raw {
			if err := a.list[i].decode(raw[i], depth+1); err != nil {
				return err
			}
		}
	case 't', 'f':
		n := 0.0
		if b[0] == 't' {
			n = 1
		}
		a.number = &n
	case 'n':
		a.isNull = true
	case '{':
		a.text = string(b)
	default:
		n, err := strconv.ParseFloat(string(b), 64)
		if err != nil && !math.IsInf(n, 0) {
			return errRecord("%.20q is no number", b)
		}
		a.number = &n
	}
	return nil
}

func errRecord(format string, args ...any) error { return fmt.Errorf(format, args...) }

// resolve turns an argument into what the rules see.
func (w *walk) resolve(a *arg) (kernels.Arg, error) {
	switch {
	case a.tensor >= 0:
		t, err := w.tensor(a.tensor)
		return kernels.Arg{Tensor: t.outside()}, err
	case a.isList:
		var out kernels.Arg
		for i := range a.list {
			e := &a.list[i]
			switch {
			case e.tensor >= 0 || e.isNull:
				var k *kernels.Tensor
				if !e.isNull {
					t, err := w.tensor(e.tensor)
					if err != nil {
						return out, err
					}
					k = t.outside()
				}
				out.Tensors = append(out.Tensors, k)
			case e.number != nil:
				out.Ints = append(out.Ints, int64(*e.number))
			}
		}
		return out, nil
	case a.number != nil:
		return kernels.Arg{Number: a.number}, nil
	}
	return kernels.Arg{Text: a.text}, nil
}

var dtypes = map[string]kernels.DType{
	"f64": kernels.F64, "f32": kernels.F32, "f16": kernels.F16, "bf16": kernels.BF16,
	"i64": kernels.I64, "i32": kernels.I32, "i16": kernels.I16, "i8": kernels.I8, "u8": kernels.U8, "bool": kernels.Bool,
	"u64": kernels.I64, "u32": kernels.I32, "u16": kernels.I16,
	"c64": kernels.C64, "c128": kernels.C128,
	"f8_e4m3": kernels.F8, "f8_e5m2": kernels.F8,
}

// maxDims is more dimensions than PyTorch's kernels take.
const maxDims = 64

// tensor is a tensor of the file.
type tensor struct {
	storage int64 // 0: not on the GPU
	kernels.Tensor
}

func (t *tensor) outside() *kernels.Tensor {
	if t == nil {
		return nil
	}
	return &t.Tensor
}

func (r *record) makeTensor() (*tensor, error) {
	t := &tensor{storage: r.S}
	t.DType = dtypes[r.D]
	if t.DType == 0 {
		t.DType = kernels.U8
	}
	t.Host = r.S == 0
	if len(r.Z) > maxDims {
		return nil, errRecord("a tensor of %d dimensions", len(r.Z))
	}
	n := int64(1)
	for _, d := range r.Z {
		if d < 0 || d > 0 && n > math.MaxInt64/64/d {
			return nil, errRecord("a tensor of shape %v", r.Z)
		}
		n *= max(d, 1)
	}
	t.Shape = r.Z
	t.Stride = r.Stride
	if t.Stride == nil {
		t.Stride = make([]int64, len(r.Z))
		s := int64(1)
		for i := len(r.Z) - 1; i >= 0; i-- {
			t.Stride[i] = s
			s *= max(r.Z[i], 1)
		}
	}
	if len(t.Stride) != len(t.Shape) {
		return nil, errRecord("a tensor of %d dimensions with %d strides", len(t.Shape), len(t.Stride))
	}
	for _, s := range t.Stride {
		if s < 0 || s > math.MaxInt64/64 {
			return nil, errRecord("a tensor with strides %v", t.Stride)
		}
	}
	return t, nil
}
