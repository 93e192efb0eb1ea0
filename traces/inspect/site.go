package inspect

import (
	"fmt"
	"regexp"

	"allocsim/internal/bytesize"
	"allocsim/traces"
)

var (
	// A node of the autograd graph that runs, and an operator that is called.
	gradNode = regexp.MustCompile(`^torch::autograd::(?:\w+::)*(\w+)::apply\(`)
	operator = regexp.MustCompile(`^at::_ops::(\w+)::call\(`)
	// Frames of C++ that every allocation has.
	plumbing = regexp.MustCompile(`^(torch::unwind|torch::CapturedTraceback|torch::cuda::|c10::|at::TensorBase at::detail|at::detail::|void at::|std::|_|Py)|CachingAllocator|^\?\?$`)
)

// siteNames resolves each stack of t to the frame that a person would look at.
type siteNames struct {
	stacks *traces.Stacks
	names  []string // by StackID; empty = not resolved yet
}

func newSiteNames(t *traces.Trace) *siteNames {
	s := &siteNames{stacks: t.Stacks}
	if t.Stacks != nil {
		s.names = make([]string, len(t.Stacks.Stack))
	}
	return s
}

// of names the call site of a block; empty without frames.
func (s *siteNames) of(id traces.BlockID) string {
	if s.stacks == nil || int(id) >= len(s.stacks.ByBlock) {
		return ""
	}
	return s.ofStack(s.stacks.ByBlock[id])
}

// ofStack names the call site of a stack; empty for NoStack.
func (s *siteNames) ofStack(stack traces.StackID) string {
	if int(stack) >= len(s.names) {
		return ""
	}
	if s.names[stack] == "" {
		s.names[stack] = siteOf(s.stacks, s.stacks.Stack[stack])
	}
	return s.names[stack]
}

// siteOf picks the innermost frame of the user's own Python code; failing that
// of a package other than PyTorch, then of Python at all; in C++ the node of the
// graph whose backward pass runs, the operator that was called, or the innermost
// frame that is not the allocator's own path.
func siteOf(s *traces.Stacks, stack []uint32) string {
	var packaged, python, native, grad, op string
	for _, i := range stack {
		f := &s.Frames[i]
		if !f.Python() {
			if m := gradNode.FindStringSubmatch(f.Function); m != nil && grad == "" {
				grad = m[1] + " (backward pass)"
			}
			if m := operator.FindStringSubmatch(f.Function); m != nil {
				op = "aten::" + m[1] // the outermost is what the program called
			}
			if native == "" && !plumbing.MatchString(f.Function) {
				native = f.Function
			}
			continue
		}
		where := fmt.Sprintf("%s:%d (%s)", f.File, f.Line, f.Function)
		switch {
		case f.User():
			return where
		case packaged == "" && f.Package():
			packaged = where
		case python == "":
			python = where
		}
	}
	for _, w := range []string{packaged, grad, python, op, native} {
		if w != "" {
			return w
		}
	}
	return ""
}

// sizeClass names the power of two that a size falls under: "1 MiB to 2 MiB".
func sizeClass(size int64) string {
	lo := int64(512)
	if size <= lo {
		return "up to 512 B"
	}
	for lo*2 < size {
		lo *= 2
	}
	return bytesize.Format(lo) + " to " + bytesize.Format(lo*2)
}
