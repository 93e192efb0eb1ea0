package sim

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends: what decides the cause of an OOM and what prepares a policy, bent
// one by one.
func TestBends(t *testing.T) {
	const file = "cause.go"
	bend.Run(t, []bend.Bend{
		{Rule: "what an allocator says of its own limit is not heard", File: file, Test: "TestCause",
			Old: "	case errors.As(err, &told):\n", Bent: "	case errors.As(err, &told) && false:\n"},
		{Rule: "pending blocks count as free", File: file, Test: "TestCause",
			Old: "				if !foreign {\n", Bent: "				in.free += b.Size\n				if !foreign {\n"},
		{Rule: "pieces help a request that is too large for the allocator", File: file, Test: "TestCause",
			Old: "pieces := !short.Final &&\n", Bent: "pieces := in.free > 0 &&\n"},
		{Rule: "nothing free is pieces, too", File: file, Test: "TestCause",
			Old: "room < wanted && in.free >= wanted-room", Bent: "room < wanted && in.free >= 0"},
		{Rule: "the limit is blamed where the device has less", File: file, Test: "TestCause",
			Old: "(short.Final || short.Limit-short.Counted <= o.DeviceFree)", Bent: "true"},
		{Rule: "the room ignores the allocator's own limit", File: file, Test: "TestCause",
			Old: "		room = min(room, max(short.Limit-short.Counted, 0))\n", Bent: ""},
		{Rule: "the size of a segment does not matter", File: file, Test: "TestCause",
			Old: "	wanted = max(short.Wanted, block)\n", Bent: "	wanted = block\n"},
		{Rule: "free blocks are one range across live ones", File: file, Test: "TestCause",
			Old: "				run, waits = 0, false\n", Bent: ""},
		{Rule: "a private pool waits for the blocks of others", File: file, Test: "TestCause",
			Old: "			if waits && !foreign {\n", Bent: "			if waits {\n"},
		{Rule: "nothing is said about waiting", File: file, Test: "TestCause",
			Old: "	case in.waiting >= block && in.own < block:\n", Bent: "	case false:\n"},
		{Rule: "a block of another stream is not named", File: file, Test: "TestCause",
			Old: "pieces && in.elsewhere >= block && in.own < block", Bent: "false"},
		{Rule: "PyTorch's private pools keep their reason to themselves", File: "../policies/torch/malloc.go", Test: "TestCause",
			Old: "	if capturing {\n		p.short.Reason", Bent: "	if false {\n		p.short.Reason"},
		{Rule: "PyTorch's limit is the device's fault", File: "../policies/torch/malloc.go", Test: "TestCause",
			Old: "		p.short.Limit, p.short.Counted = p.limit, p.total\n", Bent: ""},
		{Rule: "JAX's own limit is nobody's", File: "../policies/bfc/bfc.go", Test: "TestCause",
			Old: "Limit: a.limit, Counted: a.Counters", Bent: "Counted: a.Counters"},
		{Rule: "a policy that knows the run is given another order", File: "run.go", Test: "TestPrepareOrder",
			Old: "cfg.Policy, cfg.StartOrder = done, 0", Bent: "cfg.Policy = done"},
		{Rule: "a span prepares for the wrong order", File: "span.go", Test: "TestPrepareOrder",
			Old: "runs[k].Policy, runs[k].StartOrder = first.Policy, 0", Bent: "runs[k].Policy = first.Policy"},
		{Rule: "a prepared policy serves any room", File: "offline.go", Test: "TestPrepare",
			Old: " && p.room == room {", Bent: " {"},
		{Rule: "the room ignores the limit", File: "offline.go", Test: "TestPrepare",
			Old: "	room := machine.Room()\n", Bent: "	room := machine.Capacity\n"},
		{Rule: "a completed free comes back when it is requested", File: "offline.go", Test: "TestPrepare",
			Old: "		case traces.Free, traces.FreeCompleted:\n", Bent: "		case traces.Free, traces.FreeRequested:\n"},
	})
}
