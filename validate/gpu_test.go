//go:build cuda

package validate

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"allocsim/policies"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats"
	"allocsim/validate/cuda"
	"allocsim/validate/torchengine"
)

// These tests need a GPU; docs/validation.md shows how they are run and what
// they printed.
var (
	gpuRecordings = flag.String("recordings", "../testdata/recordings", "folder of the recordings to validate")
	gpuNames      = flag.String("names", "", "comma-separated recordings, each a path below -recordings without .pickle.zst")
	gpuOut        = flag.String("out", "", "folder for the reports as JSON")
	gpuEngines    = flag.String("engines", "cuda,torch", "engines to run")
)

func gpu(t *testing.T) cuda.Driver {
	drv, err := cuda.Open(0)
	if err != nil {
		t.Skip(err)
	}
	return drv
}

func saveJSON(t *testing.T, name string, v any) {
	if *gpuOut == "" {
		return
	}
	data, err := json.MarshalIndent(v, "", " ")
	if err == nil {
		err = os.WriteFile(filepath.Join(*gpuOut, name), data, 0o666)
	}
	if err != nil {
		t.Error(err)
	}
}

// recovered is a recording with the run that repeats it.
func recovered(t *testing.T, name string) (*traces.Trace, sim.Config) {
	t.Helper()
	rec, err := formats.Open(context.Background(), filepath.Join(*gpuRecordings, name+".pickle.zst"), formats.Options{})
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
	return r.Trace, r.Config()
}

// TestGPURecordings validates recordings with both engines.
func TestGPURecordings(t *testing.T) {
	if *gpuNames == "" {
		t.Skip("no -names")
	}
	gpu(t).Close()
	var reports []*Report
	for _, name := range strings.Split(*gpuNames, ",") {
		tr, cfg := recovered(t, name)
		for _, engine := range strings.Split(*gpuEngines, ",") {
			t.Run(name+"/"+engine, func(t *testing.T) {
				t0 := time.Now()
				r, err := Run(context.Background(), tr, Options{Engine: engine, Config: cfg})
				if err != nil {
					t.Fatal(err)
				}
				r.Source = name
				reports = append(reports, r)
				t.Logf("%s %s: pass %v in %.1fs: reserved %d / %d, allocated %d / %d, segments %d / %d, ooms %d / %d; %d statistics, %d events, %d mismatches",
					name, engine, r.Pass, time.Since(t0).Seconds(), r.Predicted.ReservedPeak, r.Measured.ReservedPeak,
					r.Predicted.AllocatedPeak, r.Measured.AllocatedPeak, r.Predicted.Segments, r.Measured.Segments,
					r.Predicted.OOMs, r.Measured.OOMs, r.StatsCompared, r.EventsCompared, len(r.Mismatches))
				for i, m := range r.Mismatches {
					if i < 5 {
						t.Logf("  %+v", m)
					}
				}
				for _, n := range r.Notes {
					t.Logf("  note: %s", n)
				}
				if !r.Pass {
					t.Fail()
				}
			})
		}
	}
	saveJSON(t, "reports.json", reports)
}

// TestGPUCard: a predicted fit "at this capacity, and not one granule less" is
// one on the card.
func TestGPUCard(t *testing.T) {
	if *gpuNames == "" {
		t.Skip("no -names")
	}
	gpu(t).Close()
	var reports []*Report
	for _, name := range strings.Split(*gpuNames, ",") {
		tr, cfg := recovered(t, name)
		cfg.Limit, cfg.Fraction = 0, 0
		need, err := smallest(tr, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, card := range []int64{need, need - 2<<20} {
			for _, engine := range strings.Split(*gpuEngines, ",") {
				t.Run(fmt.Sprintf("%s/%s/%d", name, engine, card), func(t *testing.T) {
					r, err := Run(context.Background(), tr, Options{Engine: engine, Config: cfg, Card: card})
					if err != nil {
						t.Fatal(err)
					}
					r.Source = name
					reports = append(reports, r)
					fits := card == need
					t.Logf("%s %s on a card of %d: pass %v, ooms predicted %d, measured %d, retries: %v", name, engine, card, r.Pass, r.Predicted.OOMs, r.Measured.OOMs, r.Mismatches)
					for _, n := range r.Notes {
						t.Logf("  note: %s", n)
					}
					if (r.Measured.OOMs == 0) != fits || (r.Predicted.OOMs == 0) != fits {
						t.Errorf("fits is %v", fits)
					}
				})
			}
		}
	}
	saveJSON(t, "card.json", reports)
}

// smallest is the smallest capacity in whole granules at which nothing fails.
func smallest(tr *traces.Trace, cfg sim.Config) (int64, error) {
	const granule = 2 << 20
	res, err := sim.Run(context.Background(), tr, cfg)
	if err != nil {
		return 0, err
	}
	if cfg.Total == 0 {
		cfg.Total = tr.Meta.DeviceTotal
	}
	lo, hi := int64(0), res.Stats.ReservedBytes[0].Peak/granule // fails at lo, fits at hi
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		cfg.Capacity = mid * granule
		res, err := sim.Run(context.Background(), tr, cfg)
		if err != nil {
			return 0, err
		}
		if res.Stats.NumOOMs > 0 {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi * granule, nil
}

// TestGPUCost takes the cost table.
func TestGPUCost(t *testing.T) {
	gpu(t).Close()
	cost, err := MeasureCost(context.Background(), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	saveJSON(t, "driver_cost.json", cost)
}

// TestGPUCardIsExact: on an emulated card, what the driver says is free is what
// it hands out, in whatever pieces.
func TestGPUCardIsExact(t *testing.T) {
	const mib = 1 << 20
	gpu(t).Close()
	for _, card := range []int64{64 * mib, 1026 * mib, 20480 * mib} {
		for _, piece := range []int64{2 * mib, 20 * mib, 256 * mib} {
			for _, mapped := range []bool{false, true} {
				dev, err := cuda.NewDevice(context.Background(), gpu(t), cuda.Options{Card: card})
				if err != nil {
					t.Fatal(err)
				}
				total := int64(0)
				var addr uint64
				if mapped {
					if addr, err = dev.Reserve((card/piece + 2) * piece); err != nil {
						t.Fatal(err)
					}
				}
				for err == nil && total <= card {
					if mapped {
						err = dev.Map(addr+uint64(total), piece, piece)
					} else {
						_, err = dev.Malloc(piece)
					}
					if err == nil {
						total += piece
					}
				}
				if err == nil || !errors.Is(err, policies.ErrOutOfMemory) {
					t.Errorf("no out of memory but %v", err)
				}
				free, _ := dev.MemInfo()
				t.Logf("card of %d MiB (%d free) in pieces of %d MiB, mapped %v: %d MiB handed out, %d bytes free then; %v",
					card/mib, dev.Available(), piece/mib, mapped, total/mib, free, err)
				if want := card / piece * piece; total != want {
					t.Errorf("%d bytes handed out instead of %d", total, want)
				}
				if err := dev.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestGPUAnswer saves PyTorch's answer to one recording, which
// testdata/fuzz0174.answer.json.zst is made of.
func TestGPUAnswer(t *testing.T) {
	if *gpuNames == "" {
		t.Skip("no -names")
	}
	gpu(t).Close()
	ctx := context.Background()
	tr, cfg := recovered(t, strings.Split(*gpuNames, ",")[0])
	o, err := Options{Engine: EngineTorch, Config: cfg}.prepare(tr)
	if err != nil {
		t.Fatal(err)
	}
	p, err := predictTorch(ctx, tr, o)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := torchengine.Replay(ctx, p.job)
	if err != nil {
		t.Fatal(err)
	}
	saveJSON(t, "answer.json", answer)
}

// TestGPUCancel: what a cancelled run held is free again while the process
// lives on.
func TestGPUCancel(t *testing.T) {
	if *gpuNames == "" {
		t.Skip("no -names")
	}
	free := func() int64 {
		drv := gpu(t)
		defer drv.Close()
		free, _, err := drv.MemInfo()
		if err != nil {
			t.Fatal(err)
		}
		return free
	}
	tr, cfg := recovered(t, strings.Split(*gpuNames, ",")[0])
	before := free()
	drv := &cancelAt{Driver: gpu(t), n: 20}
	var ctx context.Context
	ctx, drv.cancel = context.WithCancel(context.Background())
	o, err := Options{Engine: EngineCUDA, Config: cfg}.prepare(tr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := onDriver(ctx, tr, o, drv); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if after := free(); after != before {
		t.Errorf("%d bytes free before, %d after", before, after)
	}
}

// cancelAt cancels at the n-th allocation or page.
type cancelAt struct {
	cuda.Driver
	cancel context.CancelFunc
	n      int
}

func (c *cancelAt) count() {
	if c.n--; c.n == 0 {
		c.cancel()
	}
}

func (c *cancelAt) MemAlloc(size int64) (uint64, error) {
	c.count()
	return c.Driver.MemAlloc(size)
}

func (c *cancelAt) MemCreate(size int64) (uint64, error) {
	c.count()
	return c.Driver.MemCreate(size)
}
