package inspect

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what a recording is said to hold, who is said to hold the
// memory, and what counts as a leak.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "the peak is the last of equal ones", File: "inspect.go", Test: "TestSummaryOfSmallWorlds",
			Old: "live.Allocated > s.Peak.Requested", Bent: "live.Allocated >= s.Peak.Requested"},
		{Rule: "a block is live until its free has completed", File: "../live.go", Test: "TestSummaryOfSmallWorlds",
			Old: "case FreeRequested:\n\t\tl.Allocated -= l.size[e.ID]", Bent: "case FreeRequested:"},
		{Rule: "a block is active until its free is requested only", File: "../live.go", Test: "TestSummaryOfSmallWorlds",
			Old: "case FreeRequested:\n\t\tl.Allocated -= l.size[e.ID]", Bent: "case FreeRequested:\n\t\tl.Allocated -= l.size[e.ID]\n\t\tl.Active -= l.size[e.ID]"},
		{Rule: "a power of two counts into the bin above it", File: "inspect.go", Test: "TestSummaryOfSmallWorlds",
			Old: "bits.Len64(uint64(e.Size-1))", Bent: "bits.Len64(uint64(e.Size))"},
		{Rule: "the smallest requests are listed as the largest", File: "inspect.go", Test: "TestSummaryOfSmallWorlds",
			Old: "cmp.Compare(r.bySize[y].Size, r.bySize[x].Size)", Bent: "cmp.Compare(r.bySize[x].Size, r.bySize[y].Size)"},
		{Rule: "blocks from before the recording are requests", File: "inspect.go", Test: "TestSummaryOfSmallWorlds",
			Old: "case i < t.StartEvents:\n\t\t\ts.StartBlocks++", Bent: "case i < t.StartEvents:\n\t\t\ts.StartBlocks++\n\t\t\tasked.add(e)"},
		{Rule: "a failed request shows the free memory of another one", File: "inspect.go", Test: "TestOOMsInSummary",
			Old: "o.DeviceFree = &t.Recorded.OOMDeviceFree[n]", Bent: "o.DeviceFree = &t.Recorded.OOMDeviceFree[0]"},
		{Rule: "unknown free memory is shown as a number", File: "inspect.go", Test: "TestOOMsInSummary",
			Old: " && t.Recorded.OOMDeviceFree[n] >= 0", Bent: ""},
		{Rule: "segments from before the recording are forgotten", File: "inspect.go", Test: "TestReservedPeak",
			Old: "peak := reserved\n", Bent: "reserved = 0\n\tpeak := reserved\n"},
		{Rule: "unmapped memory stays reserved", File: "../../internal/memory/memory.go", Test: "TestReservedPeak",
			Old: "return a == SegmentFree || a == SegmentUnmap", Bent: "return a == SegmentFree"},
		{Rule: "segments count for more than the allocator's statistics", File: "inspect.go", Test: "TestReservedPeak",
			Old: "t.Recorded == nil || s.statistics(t.Recorded.Stats)", Bent: "t.Recorded == nil || len(t.Recorded.Driver) == 0 && s.statistics(t.Recorded.Stats)"},
		{Rule: "a block that waits for its free to complete is allocated", File: "inspect.go", Test: "TestReservedPeak",
			Old: "b.State == traces.ActiveAllocated", Bent: "b.State != traces.Inactive"},
		{Rule: "an unknown configuration is shown as an empty one", File: "inspect.go", Test: "TestTranscripts",
			Old: "if t.Meta.ConfKnown {", Bent: "if true {"},

		{Rule: "what is freed at the peak is held at the peak", File: "top.go", Test: "TestTopOfSmallWorlds",
			Old: "int(death[id]) <= at", Bent: "int(death[id]) < 0"},
		{Rule: "a request that failed holds memory", File: "top.go", Test: "TestTopOfSmallWorlds",
			Old: "birth[e.ID], death[e.ID] = int32(len(t.Events)), 0", Bent: "death[e.ID] = int32(len(t.Events))"},
		{Rule: "the last of equal peaks is looked at", File: "top.go", Test: "TestTopOfSmallWorlds",
			Old: "live.Allocated > peak {", Bent: "live.Allocated >= peak {"},
		{Rule: "what lives into the next iteration is persistent", File: "top.go", Test: "TestTranscripts",
			Old: "last-first >= 2", Bent: "last-first >= 1"},
		{Rule: "activations are transient", File: "top.go", Test: "TestTranscripts",
			Old: "transientShare*loop", Bent: "10*transientShare*loop"},
		{Rule: "1 MiB falls into the class above", File: "site.go", Test: "TestTopOfSmallWorlds",
			Old: "for lo*2 < size", Bent: "for lo*2 <= size"},

		{Rule: "the youngest iterations are evidence", File: "leaks.go", Test: "TestTranscripts",
			Old: "judged := it.Count() - YoungIterations", Bent: "judged := it.Count()"},
		{Rule: "optimizer states are evidence", File: "leaks.go", Test: "TestTranscripts",
			Old: "iteration < WarmIterations {", Bent: "iteration < 0 {"},
		{Rule: "two iterations make a leak", File: "leaks.go", Test: "TestLeaking",
			Old: "len(at) < minLeaking", Bent: "len(at) < 2"},
		{Rule: "what comes irregularly is a leak", File: "leaks.go", Test: "TestTranscripts|TestLeaking",
			Old: "sorted[len(sorted)-1] > 2*median || ", Bent: ""},
		{Rule: "a cache that is full is a leak", File: "leaks.go", Test: "TestTranscripts|TestLeaking",
			Old: " || len(blocks)-1-at[len(at)-1] > 2*median", Bent: ""},
		{Rule: "tokens of a text are a leak", File: "leaks.go", Test: "TestTranscripts",
			Old: "per < minGuessed", Bent: "per < 0"},
		{Rule: "layers that only add are a leak", File: "leaks.go", Test: "TestTranscripts",
			Old: "!breathes(t, it) &&", Bent: "false &&"},
		{Rule: "the projection forgets what is in use", File: "leaks.go", Test: "TestProjection",
			Old: "float64(capacity-end.peak)", Bent: "float64(capacity)"},
		{Rule: "the projection goes on with shorter iterations", File: "leaks.go", Test: "TestProjection",
			Old: ") / float64(n)\n\tleft", Bent: ") / float64(n+1)\n\tleft"},
		{Rule: "memory that was used up is projected all the same", File: "leaks.go", Test: "TestProjection",
			Old: "if r.UsedUpUS >= 0 {", Bent: "if false {"},
		{Rule: "a capacity that is met exactly is used up", File: "leaks.go", Test: "TestProjection",
			Old: "a.live.Allocated > capacity", Bent: "a.live.Allocated >= capacity"},
		{Rule: "streams are lumped together", File: "leaks.go", Test: "TestLeaksByStream",
			Old: "p.size, p.stream = e.Size, e.Stream", Bent: "p.size = e.Size"},
		{Rule: "the smallest leak comes first", File: "leaks.go", Test: "TestLeaksByStream",
			Old: "cmp.Compare(y.BytesPerIteration, x.BytesPerIteration)", Bent: "cmp.Compare(x.BytesPerIteration, y.BytesPerIteration)"},

		{Rule: "optimizer marks count for more than the profiler's steps", File: "iterations.go", Test: "TestMarks",
			Old: `strings.HasPrefix(name, "ProfilerStep"):
			return 0`, Bent: `strings.HasPrefix(name, "ProfilerStep"):
			return 2`},
		{Rule: "the innermost of equal marks is taken", File: "iterations.go", Test: "TestMarks",
			Old: "cmp.Compare(len(s), len(starts[best]))", Bent: "cmp.Compare(len(starts[best]), len(s))"},
		{Rule: "a mark's end starts an iteration", File: "iterations.go", Test: "TestMarks",
			Old: "if a.End {", Bent: "if false {"},
		{Rule: "layers of a backward pass are iterations", File: "iterations.go", Test: "TestTranscripts",
			Old: " && 4*older <= n", Bent: ""},
		{Rule: "the building of a model is a loop", File: "iterations.go", Test: "TestTranscripts",
			Old: "2*own >= n && ", Bent: ""},
	})
}
