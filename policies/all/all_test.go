package all_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/policies/packing"
	"allocsim/policies/policytest"
)

// settings are options for each policy; with them and without, it must read
// its own normal form back.
var settings = map[string][]string{
	"packing":     {"budget=5,seed=3"},
	"bfc":         {"preallocate=false,limit=3003121664", "gc=true,vmm=true,fragmentation=0.1,preallocate=no", "fraction=0.5"},
	"cupy":        {"limit=4GiB", "limit=12.5%,retry-at-limit=yes"},
	"direct":      {"round=2MiB"},
	"rmm-arena":   {"size=40%", "size=1024 MiB,size-classes=1"},
	"rmm-binning": {"from=1KiB,to=64KiB,initial=1GiB,max=2GiB", "bins=3000+1MiB,upstream=cuda"},
	"rmm-fixed":   {"block=3000,blocks=7", "upstream=pool,initial=10%"},
	"rmm-pool":    {"initial=4MiB,max=64MiB", "initial=50%"},
	"stream":      {"threshold=0,max=4GiB,limit-counts=used", "threshold=max"},
	"torch":       {"max_split_size_mb:128,garbage_collection_threshold:0.6", "expandable_segments:True"},
}

func TestNormalForm(t *testing.T) {
	for _, r := range policies.Registered() {
		if r.Doc == "" || r.Options == "" {
			t.Errorf("%s lacks a description", r.Name)
		}
		for _, options := range append([]string{""}, settings[r.Name]...) {
			first, err := policies.Parse(r.Name + ":" + options)
			if err != nil {
				t.Errorf("%s:%s: %v", r.Name, options, err)
				continue
			}
			second, err := policies.Parse(first.String())
			if err != nil {
				t.Errorf("%s does not read its own normal form: %v", first, err)
				continue
			}
			if first.Name != r.Name || second.String() != first.String() {
				t.Errorf("%s:%s is %s and then %s", r.Name, options, first, second)
			}
			if options != "" && first.Options == "" && options != "threshold=max" {
				t.Errorf("%s:%s is lost", r.Name, options)
			}
		}
		if settings[r.Name] == nil {
			t.Errorf("no settings for %s in this test", r.Name)
		}
		if _, err := policies.Parse(r.Name + ":no_such_option=1"); r.Name != "torch" && (err == nil || !strings.Contains(err.Error(), "known: ")) {
			t.Errorf("%s with an unknown option: %v", r.Name, err)
		}
	}
}

// TestNoGarbage checks that a steady run allocates no memory, whatever the
// policy.
func TestNoGarbage(t *testing.T) {
	for _, r := range policies.Registered() {
		if r.Name == packing.Name {
			continue // it serves from a plan of the whole trace
		}
		t.Run(r.Name, func(t *testing.T) {
			spec, err := policies.Parse(r.Name)
			if err != nil {
				t.Fatal(err)
			}
			p, err := spec.New(policies.Env{Device: policytest.NewDevice(80 << 30), Streams: 1})
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			var live [300]policies.Handle
			step := func() {
				i := rng.IntN(len(live))
				if live[i] != 0 {
					if err := p.Free(live[i], false); err != nil {
						t.Fatal(err)
					}
				}
				b, err := p.Malloc(policies.Request{Size: 1 + rng.Int64N(1<<20)})
				if err != nil {
					t.Fatal(err)
				}
				live[i] = b.Handle
			}
			for range 20_000 {
				step()
			}
			if n := testing.AllocsPerRun(5000, step); n > 0 {
				t.Errorf("%g memory allocations per step", n)
			}
		})
	}
}
