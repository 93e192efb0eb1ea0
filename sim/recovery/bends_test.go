package recovery_test

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what recovery decides by.
func TestBends(t *testing.T) {
	b := func(rule, file, old, bent, test string) bend.Bend {
		return bend.Bend{Rule: rule, File: file, Old: old, Bent: bent, Test: test}
	}
	bend.Run(t, []bend.Bend{
		b("call stacks that name empty_cache do not decide", "evidence.go", "b.caller == traces.CallerEmptyCache || !b.grew && !b.oom", "!b.grew && !b.oom", "TestNamedCall"),
		b("a burst that an empty_cache explains bounds a limit", "evidence.go", "called: calledBefore(tr, k)", "called: false", "TestCases"),
		b("what was held after a release is no lower bound", "evidence.go", "ev.limitLow = max(ev.limitLow, held+d.Size)", "_ = d.Size", "TestCases"),
		b("a request that failed with room on the device bounds nothing", "evidence.go", "ev.roomy++\n\t\t\tev.limitHigh = min(ev.limitHigh, held+segment-1)", "ev.roomy++", "TestWithoutSidecar"),
		b("a device is full at one oom entry of many sums", "evidence.go", "constant = constant && capacity == held+free", "constant = true", "TestSums"),
		b("a full card is always taken for a fraction", "search.go", "kinds = append(kinds, KindCard)", "kinds = append(kinds, KindFraction)", "TestAllWorlds"),
		b("a fraction is never thought of", "search.go", "if fraction {\n\t\tkinds = append(kinds, KindFraction)\n\t}", "", "TestAllWorlds"),
		b("without a limit is never thought of", "search.go", "return append(bounded, none), nil", "return bounded, nil", "TestAllWorlds"),
		b("two bursts are a limit however many calls are certain", "search.go", "flushes > 2*others", "flushes > 1", "TestCases"),
		b("a bracket reaches to the need of the next flush", "search.go", "edges[k], edges[k+1]-1", "edges[k], edges[k+1]", "TestBrackets"),
		b("the collected bracket is not searched for its ends", "search.go", "f.low, f.high, err = s.edges(ctx, t, KindFraction, low, t.machine.Limit, top); err != nil", "f.low, f.high = low, top; err != nil", "TestBrackets"),
		b("a known capacity that explains every flush does not decide", "search.go", "s.confirmed(none) || none.kind == KindCard", "s.confirmed(none)", "TestFlags"),
		b("a fraction without the device's size says nothing", "recover.go", "k.assume = KindFraction\n\t}\n\tif k.noFraction", "}\n\tif k.noFraction", "TestFlags"),
		b("a fraction counts only with a recorded device", "recover.go", "case k.total > 0 || k.capacity > 0:", "case m.DeviceTotal > 0:", "TestFlags"),
		b("the fields of a file do not bound its release", "recover.go", "r.Version = min2(lastBefore(r.Before), conf.Latest)", "r.Version = conf.Latest", "TestRelease"),
		b("an NPU's rounding passes for CUDA's", "backend.go", "(n + 32 + 511) &^ 511", "(n + 511) &^ 511", "TestOtherBackend"),
		b("a conversion forgets the bounds", "recover.go", "t.Meta.Bounds = append(t.Meta.Bounds, traces.Bound{Kind: e.Kind, Low: e.Low, High: e.High, At: b})", "_ = b", "TestPortable"),
		b("what is contradicted is not said", "explanation.go", "if held > bound && !done {", "if held > 2*bound && !done {", "TestFlags"),
	})
}
