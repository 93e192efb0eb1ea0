package planner_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"allocsim/internal/bytesize"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

// program reads a small program, one call a line; each takes 10 µs.
//
//	alloc NAME SIZE   a tensor
//	free NAME
//	empty_cache       torch.cuda.empty_cache()
//	oom SIZE          a request that failed when this was recorded
//	at US             the next call is at that time
func program(t *testing.T, lines []string) *traces.Trace {
	t.Helper()
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	ids := make(map[string]traces.BlockID)
	now := int64(0)
	size := func(text string) int64 {
		n, err := bytesize.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, line := range lines {
		w := strings.Fields(line)
		switch {
		case len(w) == 3 && w[0] == "alloc":
			ids[w[1]] = b.Alloc(now, size(w[2]), s, 0)
		case len(w) == 2 && w[0] == "free":
			b.Free(now, ids[w[1]])
		case len(w) == 1 && w[0] == "empty_cache":
			b.EmptyCache(now)
		case len(w) == 2 && w[0] == "oom":
			b.OOM(now, size(w[1]), s, 0)
		case len(w) == 2 && w[0] == "at":
			n, err := strconv.ParseInt(w[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			now = n
			continue
		default:
			t.Fatalf("%q is no call", line)
		}
		now += 10
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Source = "the program"
	return tr
}

// TestByHand runs testdata/byhand.txt, in which every figure is worked out in
// the comment above it.
func TestByHand(t *testing.T) {
	ctx := context.Background()
	datadriven.RunTest(t, "testdata/byhand.txt", func(t *testing.T, d *datadriven.TestData) string {
		bytes := func(name string) int64 {
			if !d.HasArg(name) {
				return 0
			}
			var s string
			d.ScanArgs(t, name, &s)
			n, err := bytesize.Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		policy := "torch"
		d.MaybeScanArgs(t, "policy", &policy)
		spec, err := policies.Parse(policy)
		if err != nil {
			t.Fatal(err)
		}
		machine := sim.Machine{Capacity: bytes("capacity"), Limit: bytes("limit")}
		var cases []planner.Case
		for _, text := range strings.Split(d.Input, "\nand\n") {
			cases = append(cases, planner.Case{Trace: program(t, strings.Split(text, "\n")), Policy: spec, Machine: machine})
		}
		var b strings.Builder
		size := func(n int64) string {
			if n%mib != 0 {
				return fmt.Sprintf("%d bytes", n)
			}
			return fmt.Sprintf("%d MiB", n/mib)
		}
		switch d.Cmd {
		case "run":
			r, err := sim.Run(ctx, cases[0].Trace, cases[0].Config())
			if err != nil {
				t.Fatal(err)
			}
			s := &r.Stats
			fmt.Fprintf(&b, "completes %v, reserved %s, allocated %s, %d retries, %d OOMs\n", r.Completed,
				size(s.ReservedBytes[policies.All].Peak), size(s.AllocatedBytes[policies.All].Peak), s.NumAllocRetries, s.NumOOMs)
		case "smallest":
			least, safe, err := planner.SmallestCapacity(ctx, cases, spec, 1)
			if err != nil {
				return err.Error() + "\n"
			}
			fmt.Fprintf(&b, "least %s, safe %s\n", size(least), size(safe))
		case "tune":
			r, err := planner.Tune(ctx, cases, planner.TuneOptions{Budget: 300, Workers: 1})
			if err != nil {
				return err.Error() + "\n"
			}
			fmt.Fprintf(&b, "%s; bound %s, now %s with %d retries and %d OOMs", r.Verdict, size(r.Bound), size(r.Baseline.ReservedPeak), r.Baseline.NumAllocRetries, r.Baseline.NumOOMs)
			if r.Room > 0 {
				fmt.Fprintf(&b, ", room %s", size(int64(r.Room)))
			}
			if r.Short > 0 {
				fmt.Fprintf(&b, ", short of %s", size(r.Short))
			}
			b.WriteByte('\n')
			if r.Export != "" {
				fmt.Fprintf(&b, "%s: %s\n", r.Export, size(r.Best.ReservedPeak))
			}
			for _, p := range r.PerTrace {
				if len(r.PerTrace) > 1 {
					fmt.Fprintf(&b, "bound %s, now %s\n", size(p.Bound), size(p.Baseline.ReservedPeak))
				}
			}
		case "plan":
			var o planner.PlanOptions
			o.Tune = planner.TuneOptions{Budget: 100, Workers: 1}
			var cards []string
			d.ScanArgs(t, "cards", &cards)
			for _, c := range cards { // measured, and without other users
				n, err := bytesize.Parse(c)
				if err != nil {
					t.Fatal(err)
				}
				o.Cards = append(o.Cards, gpus.Card{Name: c, Total: n, Low: n, High: n, Confidence: gpus.Measured})
			}
			r, err := planner.Plan(ctx, cases, o)
			if err != nil {
				return err.Error() + "\n"
			}
			m := r.MinCapacity
			fmt.Fprintf(&b, "bound %s, now %s, safe %s\n", size(m.Bound), size(m.Baseline), size(m.BaselineSafe))
			for _, c := range r.GPUs {
				sign := ""
				if c.Headroom >= 0 {
					sign = "+"
				}
				fmt.Fprintf(&b, "%s: %s, %s%s, reserves %s with %d retries\n", c.Name, c.Verdict, sign, size(c.Headroom), size(c.ReservedPeak), c.NumAllocRetries)
			}
		case "colocate":
			r, err := planner.Colocate(ctx, cases, planner.ColocateOptions{Capacity: bytes("card"), Overhead: bytes("overhead"), WorstCase: d.HasArg("worst")})
			if err != nil {
				return err.Error() + "\n"
			}
			fmt.Fprintf(&b, "fits %v, at most %s at once, %s if all had their peak\n", r.Fits, size(r.UsedPeak), size(r.SumOfPeaks))
			for _, j := range r.Jobs {
				fmt.Fprintf(&b, "starts at %d µs, completes %v, reserves %s, %d retries, %d OOMs\n", j.DelayUS, j.Completed, size(j.ReservedPeak), j.NumAllocRetries, j.NumOOMs)
			}
		case "alerts":
			var exprs []string
			d.ScanArgs(t, "when", &exprs)
			cfg := cases[0].Config()
			cfg.Detail = true
			r, err := sim.Run(ctx, cases[0].Trace, cfg)
			if err != nil {
				t.Fatal(err)
			}
			alerts, err := planner.ParseAlerts(exprs)
			if err != nil {
				return err.Error() + "\n"
			}
			for _, a := range planner.Check(alerts, r) {
				fmt.Fprintln(&b, a)
			}
		default:
			t.Fatalf("unknown command %s", d.Cmd)
		}
		return b.String()
	})
}
