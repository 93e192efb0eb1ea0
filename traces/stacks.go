package traces

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
