package rmm

import (
	"strings"
	"testing"

	"allocsim/policies"
	"allocsim/policies/policytest"
)

var registrations = []policies.Registration{Pool, Fixed, Binning, Arena}

// parse reads NAME:OPTIONS.
func parse(text string) (*policies.Spec, error) {
	name, options, _ := strings.Cut(text, ":")
	for _, r := range registrations {
		if r.Name == name {
			return r.Parse(options)
		}
	}
	panic("no policy " + name)
}

func spec(tb testing.TB, text string) *policies.Spec {
	s, err := parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	const mib = 1 << 20
	wide := policytest.Options{Capacities: []int64{0, 1 << 30}, Limits: []int64{0, 200 * mib}}
	bounded := policytest.Options{Capacities: []int64{96 * mib, 400 * mib}, Limits: []int64{0, 40 * mib}}
	for text, o := range map[string]policytest.Options{
		"rmm-pool":                         {},
		"rmm-pool:initial=32MiB,max=64MiB": {},
		"rmm-pool:initial=50%":             bounded,
		"rmm-fixed:block=4KiB":             {MaxSize: 8 << 10},
		"rmm-fixed:block=1MiB,blocks=16":   {MaxSize: 2 * mib},
		"rmm-fixed:block=100000,blocks=5,upstream=pool,initial=1MiB": {MaxSize: mib},
		"rmm-binning:from=4KiB,to=128KiB":                            wide,
		"rmm-binning:bins=1KiB+50KiB+1MiB,upstream=cuda":             wide,
		"rmm-arena":            bounded,
		"rmm-arena:size=33MiB": {},
		"rmm-arena:size=35000000,size-classes=true": {},
	} {
		t.Run(text, func(t *testing.T) { policytest.Run(t, spec(t, text), o) })
	}
}

func TestTranscripts(t *testing.T) {
	policytest.Transcripts(t, "testdata/transcripts", parse)
}

func BenchmarkSteadyPool(b *testing.B)  { policytest.Benchmark(b, spec(b, "rmm-pool")) }
func BenchmarkSteadyFixed(b *testing.B) { policytest.Benchmark(b, spec(b, "rmm-fixed:block=32MiB")) }
func BenchmarkSteadyBinning(b *testing.B) {
	policytest.Benchmark(b, spec(b, "rmm-binning"))
}
func BenchmarkSteadyArena(b *testing.B) {
	policytest.Benchmark(b, spec(b, "rmm-arena:size=40GiB"))
}

// TestSizeClasses holds the vectors of RMM's own test.
func TestSizeClasses(t *testing.T) {
	const kib, mib, gib = 1 << 10, 1 << 20, 1 << 30
	if len(sizeClasses) != 116 { // and a catch-all
		t.Errorf("%d size classes", len(sizeClasses))
	}
	for size, want := range map[int64]int64{
		8: 256, 256: 256, 264: 512, 512: 512, 17 * kib: 20 * kib, 13 * mib: 14 * mib,
		2500 * mib: 2560 * mib, 128 * gib: 128 * gib, 49 * kib: 54 * kib, 55 * kib: 64 * kib,
		1<<50 - 1: 1<<63 - 1,
	} {
		if got := sizeClass(size); got != want {
			t.Errorf("size class of %d is %d, expected %d", size, got, want)
		}
	}
}
