package dryrun

import (
	"encoding/binary"

	"allocsim/traces"
)

// stackTable interns stacks: the operation, then the program's frames,
// innermost first.
type stackTable struct {
	t       traces.Stacks
	byFrame map[traces.Frame]uint32
	byKey   map[string]traces.StackID
	key     []byte
}

func (s *stackTable) init() {
	s.byFrame = make(map[traces.Frame]uint32)
	s.byKey = make(map[string]traces.StackID)
}

func (s *stackTable) frame(f traces.Frame) uint32 {
	if i, ok := s.byFrame[f]; ok {
		return i
	}
	i := uint32(len(s.t.Frames))
	s.t.Frames = append(s.t.Frames, f)
	s.byFrame[f] = i
	return i
}

func (s *stackTable) stack(op string, frames []uint32) traces.StackID {
	s.key = binary.AppendUvarint(s.key[:0], uint64(s.frame(traces.Frame{Function: op})))
	for _, f := range frames {
		s.key = binary.AppendUvarint(s.key, uint64(f))
	}
	if id, ok := s.byKey[string(s.key)]; ok {
		return id
	}
	id := traces.StackID(len(s.t.Stack))
	st := make([]uint32, 0, len(frames)+1)
	st = append(append(st, s.frame(traces.Frame{Function: op})), frames...)
	s.t.Stack = append(s.t.Stack, st)
	s.byKey[string(s.key)] = id
	return id
}

// record notes the stack of a block; blocks come in order.
func (s *stackTable) record(id traces.BlockID, st traces.StackID) {
	for len(s.t.ByBlock) < int(id) {
		s.t.ByBlock = append(s.t.ByBlock, traces.NoStack)
	}
	s.t.ByBlock = append(s.t.ByBlock, st)
}

func (s *stackTable) table() *traces.Stacks { return &s.t }
