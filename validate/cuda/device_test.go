package cuda_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"allocsim/policies"
	. "allocsim/validate/cuda"
	"allocsim/validate/cuda/cudatest"
)

const (
	mib  = 1 << 20
	gib  = 1 << 30
	gran = cudatest.Granule
	T    = 16 * gib
)

func open(t *testing.T, f *cudatest.Driver, o Options) *Device {
	t.Helper()
	d, err := NewDevice(context.Background(), f, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// workout uses every kind of call, in the way a policy does: segments that
// come and go, two reservations with holes, one given back.
func workout(d *Device) error {
	const page = 20 * mib
	var segs []uint64
	for _, s := range []int64{2 * mib, 20 * mib, 64 * mib} {
		a, err := d.Malloc(s)
		if err != nil {
			return err
		}
		segs = append(segs, a)
	}
	small, err := d.Reserve(gib)
	if err != nil {
		return err
	}
	large, err := d.Reserve(50 * page)
	if err != nil {
		return err
	}
	if err := d.Map(small, 2*mib, 2*mib); err != nil {
		return err
	}
	if err := d.Map(large, 5*page, page); err != nil {
		return err
	}
	if err := d.Unmap(large+2*page, 2*page, page); err != nil { // a hole
		return err
	}
	if err := d.Map(large+3*page, page, page); err != nil { // half filled
		return err
	}
	if err := d.Free(segs[1], 20*mib); err != nil {
		return err
	}
	if err := d.Unmap(small, 2*mib, 2*mib); err != nil {
		return err
	}
	return d.Release(small, gib)
}

func TestWorkout(t *testing.T) {
	f := cudatest.New(T)
	d := open(t, f, Options{})
	if err := workout(d); err != nil {
		t.Fatal(err)
	}
	u := d.Usage()
	// Most was held after the last Map: 2+20+64 MiB, 2 MiB and four pages.
	if u.Held != u.Peak || u.Peak != (2+20+64+2+5*20)*mib || u.PeakPieces != 3+1+5 {
		t.Errorf("usage %+v", u)
	}
	if used, _ := d.InUse(); used != (2+64+4*20)*mib {
		t.Errorf("in use %d MiB", used/mib)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if f.Leaks() != "" || f.Closed != 1 {
		t.Errorf("leaks %s; closed %d times", f.Leaks(), f.Closed)
	}
	if a := d.Usage().After; a != 0 {
		t.Errorf("%d bytes in use afterwards", a)
	}
	if err := d.Close(); err != nil || f.Closed != 1 {
		t.Errorf("a second Close: %v, closed %d times", err, f.Closed)
	}
}

// Whatever call fails, and whichever time: the failure is reported and nothing
// leaks.
func TestEveryCallFails(t *testing.T) {
	for _, card := range []int64{0, 3 * gib} {
		clean := cudatest.New(T)
		d := open(t, clean, Options{Card: card})
		if err := errors.Join(workout(d), d.Close()); err != nil {
			t.Fatal(err)
		}
		for name, times := range clean.Calls {
			for k := 1; k <= times; k++ {
				t.Run(fmt.Sprintf("card=%d/%s/%d", card, name, k), func(t *testing.T) {
					f := cudatest.New(T)
					f.FailCall, f.FailAt = name, k
					d, err := NewDevice(context.Background(), f, Options{Card: card})
					var closing error
					if err == nil {
						err = workout(d)
						closing = d.Close()
					}
					if !f.Failed {
						t.Fatalf("the failure never came")
					}
					if f.Leaks() != "" {
						t.Errorf("leaks %s after %v", f.Leaks(), err)
					}
					if name != "Close" && f.Closed != 1 {
						t.Errorf("the driver was closed %d times", f.Closed)
					}
					// A release in Close that works the second time is no error
					// to anyone; everything else is.
					if err == nil && closing == nil && !strings.Contains("MemFree MemUnmap MemRelease AddressFree", name) {
						t.Errorf("nobody heard of it")
					}
					if err != nil && !errors.Is(err, cudatest.ErrInjected) {
						t.Errorf("error %v", err)
					}
				})
			}
		}
	}
}

// A release that never works is named, and everything else is released.
func TestReleaseFailsForGood(t *testing.T) {
	f := cudatest.New(T)
	d := open(t, f, Options{})
	if err := workout(d); err != nil {
		t.Fatal(err)
	}
	stuck, err := d.Malloc(2 * mib)
	if err != nil {
		t.Fatal(err)
	}
	f.Forget(stuck)
	err = d.Close()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%#x", stuck)) {
		t.Errorf("Close said %v", err)
	}
	if f.Leaks() != "" {
		t.Errorf("leaks %s", f.Leaks())
	}
}

func TestCard(t *testing.T) {
	for _, want := range []int64{gran, 130*mib + 1, 2*gib + gran, 7*gib - 1, T - 8*mib} {
		for _, mapped := range []bool{false, true} {
			if mapped && want > gib {
				continue // the same with thousands of pages
			}
			f := cudatest.New(T + gib/1024)
			f.Unusable, f.PageTables = 3*mib+128<<10, gran
			d := open(t, f, Options{Card: want})
			exact := want / gran * gran
			if d.Available() != exact {
				t.Errorf("card of %d: %d available", want, d.Available())
			}
			// It fits to the last granule and not one more.
			if mapped {
				r, err := d.Reserve(exact + gran)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Map(r, exact, gran); err != nil {
					t.Errorf("card of %d: %v", want, err)
				}
				if err := d.Map(r+uint64(exact), gran, gran); !errors.Is(err, policies.ErrOutOfMemory) {
					t.Errorf("card of %d is full, but: %v", want, err)
				}
			} else {
				if _, err := d.Malloc(exact); err != nil {
					t.Errorf("card of %d: %v", want, err)
				}
				if _, err := d.Malloc(1); !errors.Is(err, policies.ErrOutOfMemory) {
					t.Errorf("card of %d is full, but: %v", want, err)
				}
			}
			if u := d.Usage(); u.Peak != exact {
				t.Errorf("card of %d: usage %+v", want, u)
			}
			if err := d.Close(); err != nil || f.Leaks() != "" {
				t.Errorf("card of %d: close %v, leaks %s", want, err, f.Leaks())
			}
		}
	}
	for want, say := range map[int64]string{T: "cannot be emulated", gran - 1: "smaller than the driver's granule"} {
		f := cudatest.New(T)
		f.Unusable = gran
		if _, err := NewDevice(context.Background(), f, Options{Card: want}); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("card of %d: %v", want, err)
		}
		if f.Leaks() != "" || f.Closed != 1 {
			t.Errorf("card of %d: leaks %s, closed %d", want, f.Leaks(), f.Closed)
		}
	}
}

func TestReserve(t *testing.T) {
	f := cudatest.New(4 * gib)
	f.Others = gib / 2
	d := open(t, f, Options{Reserve: gib})
	if d.Available() != 5*gib/2 {
		t.Fatalf("%d available", d.Available())
	}
	if free, total := d.MemInfo(); free != 5*gib/2 || total != 4*gib {
		t.Errorf("MemInfo %d, %d", free, total)
	}
	if _, err := d.Malloc(5*gib/2 + 1); !errors.Is(err, policies.ErrOutOfMemory) || f.Calls["MemAlloc"] != 0 {
		t.Errorf("eating into the reserve: %v after %d calls", err, f.Calls["MemAlloc"])
	}
	a, err := d.Malloc(2 * gib)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Reserve(gib)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Map(r, gib, 2*mib); !errors.Is(err, policies.ErrOutOfMemory) || f.Calls["MemCreate"] != 0 {
		t.Errorf("mapping into the reserve: %v after %d calls", err, f.Calls["MemCreate"])
	}
	if err := d.Free(a, 2*gib); err != nil {
		t.Fatal(err)
	}
	if err := d.Map(r, gib, 2*mib); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil || f.Leaks() != "" {
		t.Errorf("close %v, leaks %s", err, f.Leaks())
	}
	if _, err := NewDevice(context.Background(), cudatest.New(gib), Options{Reserve: gib}); err == nil {
		t.Error("a card that is all reserve was accepted")
	}
}

// A Map that the driver cannot complete leaves no page behind and is an "out
// of memory" that the policy may answer.
func TestMapAllOrNone(t *testing.T) {
	f := cudatest.New(T)
	d := open(t, f, Options{Card: 100 * mib})
	r, err := d.Reserve(gib)
	if err != nil {
		t.Fatal(err)
	}
	created, mapped := f.Calls["MemCreate"], f.Calls["MemMap"]
	if err := d.Map(r, 120*mib, 20*mib); !errors.Is(err, policies.ErrOutOfMemory) {
		t.Fatal(err)
	}
	if f.Calls["MemCreate"] != created+6 || f.Calls["MemMap"] != mapped {
		t.Errorf("calls %v", f.Calls)
	}
	if used, _ := d.InUse(); used != 0 {
		t.Errorf("%d bytes stay in use", used)
	}
	if err := d.Map(r, 100*mib, 20*mib); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil || f.Leaks() != "" {
		t.Errorf("close %v, leaks %s", err, f.Leaks())
	}
}

func TestInUse(t *testing.T) {
	cases := []struct {
		users  int
		used   int64
		other  int64
		refuse bool
	}{
		{0, 0, 0, false},
		{0, 200 * mib, 0, false},
		{1, 0, 0, true},
		{-1, 2 * gib, 0, true},
		{0, 2 * gib, 0, true},
		{-1, -1, 700 * mib, false}, // our own context
		{-1, -1, 2 * gib, true},
	}
	for _, c := range cases {
		for _, o := range []Options{{}, {Force: true}, {Force: true, Card: gib}} {
			f := cudatest.New(T)
			f.Device.Users, f.Device.UsedBefore, f.Others = c.users, c.used, c.other
			d, err := NewDevice(context.Background(), f, o)
			if refuse := c.refuse && (!o.Force || o.Card > 0); refuse != errors.Is(err, ErrInUse) {
				t.Errorf("%+v, %+v: %v", c, o, err)
			}
			if err == nil {
				if (len(d.Notes()) > 0) != c.refuse {
					t.Errorf("%+v, %+v: notes %v", c, o, d.Notes())
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
			if f.Leaks() != "" || f.Closed != 1 {
				t.Errorf("%+v, %+v: leaks %s, closed %d", c, o, f.Leaks(), f.Closed)
			}
		}
	}
}

func TestCancel(t *testing.T) {
	f := cudatest.New(T)
	ctx, cancel := context.WithCancel(context.Background())
	d, err := NewDevice(ctx, f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Reserve(gib)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Map(r, 40*mib, 20*mib); err != nil {
		t.Fatal(err)
	}
	a, err := d.Malloc(20 * mib)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	calls := fmt.Sprint(f.Calls["MemAlloc"], f.Calls["MemCreate"], f.Calls["AddressReserve"])
	_, err1 := d.Malloc(20 * mib)
	err2 := d.Map(r+40*mib, 20*mib, 20*mib)
	_, err3 := d.Reserve(gib)
	for _, err := range []error{err1, err2, err3} {
		if !errors.Is(err, context.Canceled) || errors.Is(err, policies.ErrOutOfMemory) {
			t.Errorf("after the cancellation: %v", err)
		}
	}
	if now := fmt.Sprint(f.Calls["MemAlloc"], f.Calls["MemCreate"], f.Calls["AddressReserve"]); now != calls {
		t.Errorf("the driver was asked: %s, then %s", calls, now)
	}
	if err := d.Free(a, 20*mib); err != nil {
		t.Errorf("giving back must still work: %v", err)
	}
	if err := d.Close(); err != nil || f.Leaks() != "" {
		t.Errorf("close %v, leaks %s", err, f.Leaks())
	}
}

// What a broken policy might ask is refused before the driver sees it.
func TestMisuse(t *testing.T) {
	f := cudatest.New(T)
	d := open(t, f, Options{})
	a, err := d.Malloc(20 * mib)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Reserve(100 * mib)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Map(r+20*mib, 40*mib, 20*mib); err != nil {
		t.Fatal(err)
	}
	for i, err := range []error{
		d.Free(a+1, 20*mib),
		d.Free(a, 2*mib),
		d.Release(r, 100*mib),           // not unmapped
		d.Release(r+mib, 100*mib),       // not its start
		d.Map(r+40*mib, 20*mib, 20*mib), // mapped
		d.Map(r, 40*mib, 20*mib),        // runs into it
		d.Map(r+80*mib, 40*mib, 20*mib), // past the end
		d.Map(r, 30*mib, 20*mib),        // no whole pages
		d.Map(r, 0, 20*mib),
		d.Map(r, 20*mib, 0),
		d.Map(r, 3*mib, 3*mib), // no multiple of the granule
		d.Map(1, 20*mib, 20*mib),
		d.Map(r, math.MaxInt64-math.MaxInt64%(20*mib), 20*mib),
		d.Unmap(r, 20*mib, 20*mib),        // nothing there
		d.Unmap(r+20*mib, 60*mib, 20*mib), // partly
		d.Unmap(r+20*mib, 20*mib, 2*mib),  // other pages
	} {
		if err == nil || errors.Is(err, policies.ErrOutOfMemory) {
			t.Errorf("case %d: %v", i, err)
		}
	}
	if err := d.Close(); err != nil || f.Leaks() != "" {
		t.Errorf("close %v, leaks %s", err, f.Leaks())
	}
}

// Random traffic: the books agree with the driver at every step, and the card
// is as it was afterwards.
func TestBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := cudatest.New(T)
		d, err := NewDevice(context.Background(), f, Options{Card: 2 * gib})
		if err != nil {
			t.Fatal(err)
		}
		type seg struct {
			addr uint64
			size int64
		}
		var segs []seg
		const page = 20 * mib
		r, err := d.Reserve(100 * page)
		if err != nil {
			t.Fatal(err)
		}
		mapped := map[int64]bool{}
		peak := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				s := rapid.Int64Range(1, 300).Draw(t, "MiB") * 2 * mib
				a, err := d.Malloc(s)
				if err == nil {
					segs = append(segs, seg{a, s})
				} else if !errors.Is(err, policies.ErrOutOfMemory) {
					t.Fatal(err)
				}
			case 1:
				if len(segs) > 0 {
					i := rapid.IntRange(0, len(segs)-1).Draw(t, "segment")
					if err := d.Free(segs[i].addr, segs[i].size); err != nil {
						t.Fatal(err)
					}
					segs = append(segs[:i], segs[i+1:]...)
				}
			default:
				at, n := rapid.Int64Range(0, 95).Draw(t, "page"), rapid.Int64Range(1, 5).Draw(t, "pages")
				all, none := true, true
				for p := at; p < at+n; p++ {
					all, none = all && mapped[p], none && !mapped[p]
				}
				addr := r + uint64(at*page)
				switch {
				case all:
					if err := d.Unmap(addr, n*page, page); err != nil {
						t.Fatal(err)
					}
				case none:
					if err := d.Map(addr, n*page, page); errors.Is(err, policies.ErrOutOfMemory) {
						continue
					} else if err != nil {
						t.Fatal(err)
					}
				default:
					continue
				}
				for p := at; p < at+n; p++ {
					mapped[p] = none
				}
			}
			used, err := d.InUse()
			if err != nil || used != Held(d) {
				t.Fatalf("%d bytes in use, %d in the books, %v", used, Held(d), err)
			}
			peak = max(peak, used)
		}
		if u := d.Usage(); u.Peak != peak || u.Held != peak {
			t.Fatalf("usage %+v, peak %d", u, peak)
		}
		if err := d.Close(); err != nil || f.Leaks() != "" || d.Usage().After != 0 {
			t.Fatalf("close %v, leaks %s", err, f.Leaks())
		}
	})
}

func TestMeasureCost(t *testing.T) {
	f := cudatest.New(16 * gib)
	d := open(t, f, Options{})
	c, err := MeasureCost(context.Background(), d)
	if err != nil {
		t.Fatal(err)
	}
	// Half of 15.5 GiB: sizes to 4 GiB, bursts of 60 × 100 MiB, every page.
	if len(c.Alloc) != 13 || len(c.Free) != 13 || len(c.BurstAlloc) != 3 || len(c.BurstFree) != 3 || len(c.VMM) != 9 {
		t.Errorf("measured %d, %d, %d, %d, %d sizes", len(c.Alloc), len(c.Free), len(c.BurstAlloc), len(c.BurstFree), len(c.VMM))
	}
	for k, v := range c.VMM {
		if v.Create[0] <= 0 || v.Map[1] < v.Map[0] || v.Release[0] <= 0 {
			t.Errorf("%s: %+v", k, v)
		}
	}
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(c); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"cuMemAlloc":{"1":[`, `"vmm":{"1 pages of 2 MiB":{"reserve_once":`, `"burst_free":{`} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("no %s in %s", want, buf.String())
		}
	}
	if err := d.Close(); err != nil || f.Leaks() != "" {
		t.Errorf("close %v, leaks %s", err, f.Leaks())
	}
	for _, name := range []string{"MemAlloc", "MemFree", "MemCreate", "MemUnmap", "MemInfo"} {
		for _, k := range []int{1, 2, 100, 1000} {
			f := cudatest.New(16 * gib)
			f.FailCall, f.FailAt = name, k
			d, err := NewDevice(context.Background(), f, Options{})
			if err != nil {
				continue
			}
			_, err = MeasureCost(context.Background(), d)
			if f.Failed && !errors.Is(err, cudatest.ErrInjected) {
				t.Errorf("%s %d: %v", name, k, err)
			}
			if err := d.Close(); err != nil || f.Leaks() != "" {
				t.Errorf("%s %d: close %v, leaks %s", name, k, err, f.Leaks())
			}
		}
	}
}

func TestLatencyTable(t *testing.T) {
	var l Latencies
	for range 10 {
		AddLatency(&l, CallFree, 2*mib, 1, time.Millisecond)
		AddLatency(&l, CallAlloc, 4*mib, 1, time.Microsecond)
		AddLatency(&l, CallAlloc, 2*mib, 1, time.Microsecond)
	}
	AddLatency(&l, CallAlloc, 2*mib, 1, 50*time.Microsecond)
	AddLatency(&l, CallAlloc, 2*mib, 1, 70*time.Microsecond)
	got := fmt.Sprint(l.Table())
	want := "[{cuMemAlloc 2097152 1 12 1 50} {cuMemAlloc 4194304 1 10 1 1} {cuMemFree 2097152 1 10 1000 1000}]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOpenWithoutCUDA(t *testing.T) {
	if Built {
		t.Skip("built with CUDA")
	}
	_, err := Open(0)
	if !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), "-tags cuda") {
		t.Errorf("Open: %v", err)
	}
}

// When even giving pages back fails, the failure is no "out of memory", and
// Close gives them back.
func TestMapUndoFails(t *testing.T) {
	for _, fail := range []string{"MemRelease", "MemUnmap"} {
		f := cudatest.New(T)
		d := open(t, f, Options{Card: 100 * mib})
		r, err := d.Reserve(gib)
		if err != nil {
			t.Fatal(err)
		}
		size := int64(120 * mib) // one page too many
		f.FailCall, f.FailAt = fail, 2
		if fail == "MemUnmap" {
			size = 80 * mib
			SetDriver(d, failingAccess{f})
		}
		err = d.Map(r, size, 20*mib)
		if !errors.Is(err, cudatest.ErrInjected) || errors.Is(err, policies.ErrOutOfMemory) {
			t.Errorf("%s: %v", fail, err)
		}
		if err := d.Close(); err != nil || f.Leaks() != "" {
			t.Errorf("%s: close %v, leaks %s", fail, err, f.Leaks())
		}
	}
}

type failingAccess struct{ *cudatest.Driver }

func (failingAccess) MemSetAccess(uint64, int64) error { return errors.New("no access") }
