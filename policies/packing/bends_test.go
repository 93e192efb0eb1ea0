package packing

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends: what turns a run into a problem and a placement into a policy,
// bent one by one.
func TestBends(t *testing.T) {
	const file = "planned.go"
	bend.Run(t, []bend.Bend{
		{Rule: "time is always the number of calls", File: file, Test: "TestBuffersTime",
			Old: "		if ordered {\n", Bent: "		if false && ordered {\n"},
		{Rule: "time is always the run's", File: file, Test: "TestBuffersTime",
			Old: "		if ordered {\n", Bent: "		if ordered || true {\n"},
		{Rule: "a free after a Malloc of the same µs is in order", File: file, Test: "TestBuffersTime",
			Old: "t < now || t == last && !malloc[k]", Bent: "t < now || last > t"},
		{Rule: "time may go back", File: file, Test: "TestBuffersTime",
			Old: "t < now || t == last && !malloc[k]", Bent: "t == last && t >= min(t, now) && !malloc[k]"},
		{Rule: "sizes are not rounded", File: file, Test: "TestBuffersTime",
			Old: "Size: (l.Size + round - 1) / round * round, Alignment", Bent: "Size: l.Size, Alignment"},
		{Rule: "no second search for the room", File: file, Test: "TestPrepareTarget",
			Old: "run.Room > 0 && best.Verdict(run.Room) == Unknown", Bent: "false"},
		{Rule: "the second search has no target", File: file, Test: "TestPrepareTarget",
			Old: "		o.Capacity = run.Room\n", Bent: ""},
		{Rule: "less than a page cannot be taken", File: file, Test: "TestPrepareRoom",
			Old: "heap.Round(size, page) > free", Bent: "false"},
		{Rule: "what is mapped is never given back", File: file, Test: "TestPrepareRoom",
			Old: "	if p.segment == 0 || len(p.live) > 0 {\n", Bent: "	if p.segment == 0 || len(p.live) > 0 || p.Segs[p.segment].Mapped {\n"},
		{Rule: "nothing is known to be proved", File: file, Test: "TestPrepareRoom",
			Old: "	case p.Optimal():\n", Bent: "	case false:\n"},
		{Rule: "a proof that nothing fits is not told", File: file, Test: "TestPrepareRoom",
			Old: "	case p.Verdict(room) == DoesNotFit:\n", Bent: "	case false:\n"},
	})
}
