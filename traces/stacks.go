package traces

import (
	"regexp"
	"strings"
)

// StackID names an interned call stack in [Stacks].
type StackID = uint32

// NoStack is the StackID of an allocation without frames.
const NoStack StackID = ^StackID(0)

// Frame is one line of a call stack.
type Frame struct {
	Function string
	File     string
	Line     int
}

// Files that are not the user's: installed packages, the standard library,
// frozen modules, and PyTorch built from source, which lies in a folder torch
// with PyTorch's own packages in it. A folder of the user's may be named torch.
var (
	installed = regexp.MustCompile(`/(site|dist)-packages/|/lib(64)?/python3?\.?\d*/|/Python3\d*/Lib/|^<frozen |/torch/(nn|optim|utils|autograd|_[a-z]+|cuda|amp|distributed|library|fx|jit|overrides|functional)(/|\.py)`)
	pyTorch   = regexp.MustCompile(`/torch/|^<frozen |/lib(64)?/python3?\.?\d*/[^/]+\.py$|/Python3\d*/Lib/[^/]+\.py$`)
)

// path is the frame's file with forward slashes.
func (f *Frame) path() string { return strings.ReplaceAll(f.File, `\`, "/") }

// Python reports whether a frame is Python's: scripts, notebook cells, the
// interactive interpreter.
func (f *Frame) Python() bool {
	return strings.HasSuffix(f.File, ".py") || strings.HasPrefix(f.File, "<") && f.File != "<unknown>" || strings.Contains(f.File, "ipykernel")
}

// User reports whether a frame is the user's own code: Python that belongs
// neither to Python itself nor to an installed package nor to PyTorch.
func (f *Frame) User() bool { return f.Python() && !installed.MatchString(f.path()) }

// Package reports whether a frame is Python of an installed package other than
// PyTorch.
func (f *Frame) Package() bool {
	path := f.path()
	return f.Python() && installed.MatchString(path) && !pyTorch.MatchString(path)
}

// Stacks holds each distinct call stack of a recording once.
type Stacks struct {
	// Frames are the distinct frames.
	Frames []Frame
	// Stack lists, for each StackID, indices into Frames, innermost first.
	Stack [][]uint32
	// ByBlock gives the stack of each block's allocation, by BlockID;
	// NoStack where unknown.
	ByBlock []StackID
}
