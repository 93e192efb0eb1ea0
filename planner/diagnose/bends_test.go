package diagnose

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what a diagnosis decides, one rule at a time.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		// The account.
		{Rule: "free memory in private pools counts as tensors", File: "ledger.go", Old: "l.Tensors = m.Allocated.minus(m.PrivatePools)", Bent: "l.Tensors = m.Allocated", Test: "TestTensors"},
		{Rule: "more reserved than the device has is believed", File: "ledger.go", Old: "exceeds(m.Reserved, m.Total)", Bent: "exceeds(m.Reserved, m.Total.plus(m.Total))", Test: "TestProblems"},
		{Rule: "more allocated than reserved is believed", File: "ledger.go", Old: "exceeds(m.Allocated, m.Reserved)", Bent: "exceeds(m.Allocated, m.Reserved.plus(m.Total))", Test: "TestMessages"},
		{Rule: "a chip that shares memory is taken for a card", File: "ledger.go", Old: "exceeds(m.Free, m.Total)", Bent: "exceeds(m.Free, m.Total.plus(m.Free))", Test: "TestProblems"},
		{Rule: "a container's own process is another one", File: "ledger.go", Old: "apart := context.High() >= 0", Bent: "apart := context.High() >= -huge", Test: "TestMessages"},
		{Rule: "a process that cannot hold what is reserved may be this one", File: "ledger.go", Old: "p.Uses.High() >= m.Reserved.Low()", Bent: "p.Uses.High() >= 0", Test: "TestContainer"},
		{Rule: "the listed processes together exceed the card", File: "ledger.go", Old: "exceeds(listed, m.Total.plus(Exact(m.Total.Bytes/200)))", Bent: "exceeds(listed, m.Total.plus(m.Total))", Test: "TestMessages"},

		// The decision.
		{Rule: "a few percent of slack are fragmentation", File: "decide.go", Old: "least := d.Total.Bytes / 20", Bent: "least := d.Total.Bytes / 1000", Test: "TestMessages"},
		{Rule: "a nearly full device has a limit", File: "decide.go", Old: "return !d.limited() && margin.Bytes < max(d.Total.Bytes/50, 64*bytesize.MiB)", Bent: "return !d.limited() && margin.Bytes < 0", Test: "TestTranscripts"},
		{Rule: "a limit needs no proof", File: "decide.go", Old: "!d.Reserved.plus(d.Requested).surelyAtMost(d.Allowed)", Bent: "true", Test: "TestSwaps"},
		{Rule: "the smallest part is blamed", File: "decide.go", Old: "p.held.Bytes > best.held.Bytes", Bent: "p.held.Bytes < best.held.Bytes", Test: "TestSwaps|TestMessages"},
		{Rule: "a part that would not do is blamed", File: "decide.go", Old: "if p.enough && (best == nil", Bent: "if (best == nil", Test: "TestParts"},
		{Rule: "others with half of the card come after holes", File: "decide.go", Old: "best.held.Low() < d.Total.Bytes/2", Bent: "best.held.Low() < d.Total.Bytes", Test: "TestParts"},
		{Rule: "a context is something to get rid of", File: "decide.go", Old: "return q.minus(Exact(usual))", Bent: "return q", Test: "TestParts"},
		{Rule: "rounding never matters", File: "decide.go", Old: "return !d.Requested.surelyAtMost(room)", Bent: "return false", Test: "TestMessages"},
		{Rule: "Metal's intermediates are a limit", File: "decide.go", Old: "other.Bytes > d.Allocated.Bytes &&", Bent: "other.Bytes < d.Allocated.Bytes &&", Test: "TestMessages"},
		{Rule: "a BFC pool's free memory does not count", File: "decide.go", Old: "unused := ceiling.minus(d.Allocated)", Bent: "unused := d.Free", Test: "TestMessages"},
		{Rule: "contexts are other processes for vLLM", File: "decide.go", Old: "used.Bytes <= usual && used.Bytes < d.Total.Bytes/10", Bent: "used.Bytes < 0", Test: "TestMessages"},
		{Rule: "a KV cache that fits is refused", File: "decide.go", Old: "case d.Requested.Known && d.Allowed.Known && d.Requested.surelyAtMost(d.Allowed):", Bent: "case false:", Test: "TestMessages"},

		// The advice.
		{Rule: "expandable segments on Jetson", File: "advice.go", Old: "case d.Around.Jetson:", Bent: "case false:", Test: "TestAdvice"},
		{Rule: "expandable segments with a sleep mode", File: "advice.go", Old: "case d.Around.Doze:", Bent: "case false:", Test: "TestAdvice"},
		{Rule: "PyTorch 2.1 has no expandable segments", File: "advice.go", Old: "!d.o.Version.AtLeast(2, 1)", Bent: "!d.o.Version.AtLeast(2, 2)", Test: "TestReleases"},
		{Rule: "a message before 2.1 does not prove its release", File: "advice.go", Old: "return d.Before21 ||", Bent: "return false ||", Test: "TestAdvice"},
		{Rule: "options before there was a variable", File: "advice.go", Old: "		if !d.Before14 {\n			d.help(splitSize, effect/2, \"PyTorch 1.10", Bent: "		if true {\n			d.help(splitSize, effect/2, \"PyTorch 1.10", Test: "TestAdvice"},
		{Rule: "what is on already is recommended", File: "advice.go", Old: "case d.o.Conf.ExpandableSegments:", Bent: "case false:", Test: "TestReleases"},
		{Rule: "the least effect first", File: "advice.go", Old: "cmp.Compare(b.effect, a.effect)", Bent: "cmp.Compare(a.effect, b.effect)", Test: "TestAdvice"},
		{Rule: "nvidia-smi for every vendor", File: "vendor.go", Old: "if !ok {", Bent: "if ok || !ok {", Test: "TestAdvice"},

		// Reading.
		{Rule: "a comma is a decimal point", File: "quantity.go", Old: "number = strings.ReplaceAll(number, \",\", \"\")", Bent: "number = strings.ReplaceAll(number, \",\", \".\")", Test: "TestSizes"},
		{Rule: "printed numbers are exact", File: "quantity.go", Old: "q.Rounding = int64(", Bent: "q.Rounding = 0 * int64(", Test: "TestRounding|TestSizes"},
		{Rule: "\"cached\" is reserved", File: "reader_torch.go", Old: "m.Unallocated, m.Before14 = cached, true", Bent: "m.Reserved, m.Before14 = cached, true", Test: "TestMessages"},
		{Rule: "what NVML does not know is a number", File: "reader_torch.go", Old: "if q.Bytes >= 1<<50 || total.Known && total.Bytes > 0 && q.Bytes/16 > total.Bytes {", Bent: "if q.Bytes > huge && total.Known {", Test: "TestUnknownProcess"},
		{Rule: "the counters before a failure are not its own", File: "scan.go", Old: "fill(&o.Allocated, m.Allocated)", Bent: "fill(&o.Total, m.Allocated)", Test: "TestMessages"},
		{Rule: "a handled failure is the answer", File: "scan.go", Old: "for last > 0 && ms[last].Handled {", Bent: "for false {", Test: "TestFatal"},
		{Rule: "the last rank is blamed", File: "scan.go", Old: "ranks[m.Rank] = true\n", Bent: "break\n", Test: "TestFatal"},
		{Rule: "words about errors are errors", File: "scan.go", Old: "if strong {", Bent: "if strong && len(s.log.Messages) < 0 {", Test: "TestFatal"},
		{Rule: "only the beginning of a log is read", File: "scan.go", Old: "for eof := false; !eof; {", Bent: "for eof := false; !eof && s.base == 0; {", Test: "TestLongLog"},
	})
}
