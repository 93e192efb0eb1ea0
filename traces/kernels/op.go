package kernels

import "strings"

// Op is one call of an operation below autograd and autocast.
type Op struct {
	// Name is the operation's name with its overload, unless that is the
	// default: "aten::addmm", "aten::sum.dim_IntList".
	Name string
	// Args are the arguments by their name in the schema; those left at their
	// default may be missing.
	Args map[string]Arg
	// Results are the tensors of the results in schema order, lists
	// flattened; nil where a result is undefined.
	Results []*Tensor
}

// Arg is one argument; at most one field is set.
type Arg struct {
	Tensor *Tensor
	// Tensors holds nil for absent tensors of a list.
	Tensors []*Tensor
	Ints    []int64
	// Number is a scalar; a boolean is 0 or 1.
	Number *float64
	Text   string
}

// tensor is a tensor argument; nil when it is absent.
func (o *Op) tensor(name string) *Tensor { return o.Args[name].Tensor }

// result is result i; nil when it is undefined or absent.
func (o *Op) result(i int) *Tensor {
	if i >= len(o.Results) {
		return nil
	}
	return o.Results[i]
}

// integer is a number argument, or def when it is absent.
func (o *Op) integer(name string, def int64) int64 {
	if n := o.Args[name].Number; n != nil {
		return int64(*n)
	}
	return def
}

func (o *Op) yes(name string) bool { return o.integer(name, 0) != 0 }

// base is the name without the overload.
func base(name string) string {
	b, _, _ := strings.Cut(name, ".")
	return b
}

// rule makes the plan of an operation. Arguments may be missing or odd: a
// recording can come from another release of PyTorch.
type rule func(d *Device, o *Op) Plan

// Of is the plan of an operation on a device. known is false when there is no
// rule for the operation and it is not among those that are known to take
// nothing but their results; the plan then asks for the results in order.
func Of(d *Device, o *Op) (p Plan, known bool) {
	r, ok := rules[o.Name]
	if !ok {
		r, ok = rules[base(o.Name)]
	}
	if ok {
		return r(d, o), true
	}
	p.Results(len(o.Results))
	return p, plain[base(o.Name)]
}
