package eager

import (
	"strings"

	"allocsim/traces"
)

// stackTable keeps the program's position (phase, module path, operation) and
// interns it as a call stack for every allocation.
type stackTable struct {
	phase  uint32   // frame of the current phase
	path   []uint32 // frames of the module path, outermost first
	ops    []uint32 // frames of the running operations, outermost first
	frames []traces.Frame
	byName map[string]uint32
	stacks [][]uint32
	byKey  map[string]traces.StackID
	block  []traces.StackID
	key    strings.Builder
}

func (s *stackTable) init() {
	s.byName = make(map[string]uint32)
	s.byKey = make(map[string]traces.StackID)
	s.phase = s.frame("setup")
}

func (s *stackTable) frame(name string) uint32 {
	if i, ok := s.byName[name]; ok {
		return i
	}
	i := uint32(len(s.frames))
	s.frames = append(s.frames, traces.Frame{Function: name, File: "synthetic"})
	s.byName[name] = i
	return i
}

// op names the running operation until the returned function is called.
func (s *stackTable) op(name string) func() {
	s.ops = append(s.ops, s.frame(name))
	n := len(s.ops) - 1
	return func() { s.ops = s.ops[:n] }
}

func (s *stackTable) record(e *Engine, id traces.BlockID) {
	s.key.Reset()
	add := func(i uint32) {
		s.key.Write([]byte{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	for i := len(s.ops) - 1; i >= 0; i-- {
		add(s.ops[i])
	}
	for i := len(s.path) - 1; i >= 0; i-- {
		add(s.path[i])
	}
	add(s.phase)
	k := s.key.String()
	st, ok := s.byKey[k]
	if !ok {
		st = traces.StackID(len(s.stacks))
		fs := make([]uint32, 0, len(s.ops)+len(s.path)+1)
		for i := len(s.ops) - 1; i >= 0; i-- {
			fs = append(fs, s.ops[i])
		}
		for i := len(s.path) - 1; i >= 0; i-- {
			fs = append(fs, s.path[i])
		}
		fs = append(fs, s.phase)
		s.stacks = append(s.stacks, fs)
		s.byKey[strings.Clone(k)] = st
	}
	for len(s.block) < int(id) {
		s.block = append(s.block, traces.NoStack)
	}
	s.block = append(s.block, st)
}

func (s *stackTable) table() *traces.Stacks {
	return &traces.Stacks{Frames: s.frames, Stack: s.stacks, ByBlock: s.block}
}

// Phase names what the program is doing ("forward", "optimizer.step", …): the
// outermost frame of the allocations that follow.
func (e *Engine) Phase(name string) { e.stacks.phase = e.stacks.frame(name) }

// Module runs f inside a named module; the name is the next frame of the
// allocations inside, and of their gradients in backward.
func (e *Engine) Module(name string, f func() *Tensor) *Tensor {
	e.stacks.path = append(e.stacks.path, e.stacks.frame(name))
	n := len(e.stacks.path) - 1
	defer func() { e.stacks.path = e.stacks.path[:n] }()
	return f()
}
