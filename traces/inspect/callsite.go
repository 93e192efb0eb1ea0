package inspect

import "allocsim/traces"

// CallSite names the frame of a stack that a person would look at, as in
// Holder.Where: "file.py:12 (forward)". It is empty when the stack is unknown or
// has nothing but the allocator's own path.
func CallSite(s *traces.Stacks, id traces.StackID) string {
	if s == nil || int(id) >= len(s.Stack) {
		return ""
	}
	return siteOf(s, s.Stack[id])
}
