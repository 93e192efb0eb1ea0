// Package plotstest makes traces and opens recordings for the tests of plots.
package plotstest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"allocsim/policies"
	_ "allocsim/policies/all" // for Parse
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats"
)

// Recording opens a bundled recording, whose folder is root/testdata/recordings,
// with what it leaves open found out.
func Recording(t testing.TB, root, name string) *recovery.Recovered {
	t.Helper()
	rec, err := formats.Open(context.Background(), filepath.Join(root, "testdata", "recordings", name+".pickle.zst"), formats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := rec.Device(-1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := recovery.Recover(context.Background(), tr, recovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Spec parses a policy.
func Spec(t testing.TB, s string) *policies.Spec {
	t.Helper()
	p, err := policies.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Training is a trace of about n events in the manner of a training loop:
// parameters that stay, and in each step activations that pile up and go in
// reverse, with short-lived workspaces between and sizes that vary by step.
// Its blocks have call sites.
func Training(t testing.TB, n int) *traces.Trace {
	t.Helper()
	b := traces.NewBuilder(n)
	rng := rand.New(rand.NewPCG(1, 2))
	now := int64(0)
	tick := func() int64 { now += 1 + rng.Int64N(40); return now }
	for range min(300, n/10) {
		b.Alloc(tick(), 512*(1+rng.Int64N(8000)), 0, 0)
	}
	const layers = 500
	for b.Len() < n-4*layers-8 {
		scale := 1 + rng.Int64N(4)
		var live []traces.BlockID
		for k := range layers {
			live = append(live, b.Alloc(tick(), 1024*scale*(1+int64(k%37)*40), 0, 0))
			w := b.Alloc(tick(), 1<<20+rng.Int64N(8<<20), 0, 0)
			b.Free(tick(), w)
		}
		for k := len(live) - 1; k >= 0; k-- {
			b.Free(tick(), live[k])
		}
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Source, tr.Format = "training", "made up"
	st := &traces.Stacks{}
	for k := range 50 {
		st.Frames = append(st.Frames, traces.Frame{Function: fmt.Sprintf("layer%d", k), File: "/home/user/model.py", Line: k + 1})
		st.Stack = append(st.Stack, []uint32{uint32(k)})
	}
	for id := range tr.NumBlocks {
		st.ByBlock = append(st.ByBlock, traces.StackID(id%50))
	}
	tr.Stacks = st
	return tr
}
