package policytest

import (
	"regexp"
	"testing"

	"allocsim/policies"
	"allocsim/policies/direct"
)

// broken wraps a good policy and breaks one promise.
type broken struct {
	policies.Policy
	device policies.Device
	fault  string
	calls  int
	last   policies.Block
}

func (b *broken) Malloc(r policies.Request) (policies.Block, error) {
	b.calls++
	size := r.Size
	switch b.fault {
	case "overlap":
		if b.last.Handle != 0 && b.calls%3 == 0 {
			x, err := b.Policy.Malloc(r)
			x.Addr = b.last.Addr
			return x, err
		}
	case "unaligned":
		x, err := b.Policy.Malloc(r)
		x.Addr += 8
		return x, err
	case "depends on the stream number":
		r.Stream /= 2
		if r.Stream > 0 {
			b.Policy.Stats().NumSyncAllStreams++
		}
	case "depends on addresses":
		x, err := b.Policy.Malloc(r)
		if x.Addr>>40 != mallocTop>>40 {
			b.Policy.Stats().NumSyncAllStreams++
		}
		return x, err
	case "overflows":
		if size > 1<<46 {
			r.Size = size&0xfff + 1
			return b.Policy.Malloc(r)
		}
	case "hides an OOM":
		x, err := b.Policy.Malloc(r)
		if err != nil {
			b.Policy.Stats().NumOOMs--
		}
		return x, err
	}
	x, err := b.Policy.Malloc(r)
	if err == nil {
		b.last = x
	}
	return x, err
}

func (b *broken) Free(h policies.Handle, pending bool) error {
	switch b.fault {
	case "accepts bad frees":
		_ = b.Policy.Free(h, pending)
		return nil
	case "forgets to free":
		b.calls++
		if b.calls%4 == 0 {
			return nil
		}
	case "counts wrong":
		b.Policy.Stats().RequestedBytes.Add(policies.Large, 1)
	case "counts no releases":
		err := b.Policy.Free(h, pending)
		b.Policy.Stats().NumDeviceFree = 0
		return err
	case "not deterministic":
		err := b.Policy.Free(h, pending)
		if instances%2 == 0 {
			b.Policy.Stats().NumSyncAllStreams++
		}
		return err
	}
	return b.Policy.Free(h, pending)
}

func (b *broken) Segments(buf []policies.Segment) []policies.Segment {
	buf = b.Policy.Segments(buf)
	if b.fault == "leaves a gap" && len(buf) > 0 {
		buf[0].Blocks[0].Size--
	}
	return buf
}

func (b *broken) EmptyCache() error {
	switch b.fault {
	case "leaks from the device":
		_, _ = b.device.Malloc(512)
	case "frees live blocks":
		_ = b.Policy.Free(b.last.Handle, false)
	}
	return b.Policy.EmptyCache()
}

// instances counts the policies made, so that a fault can differ between runs.
var instances int

// TestCatches bends a correct policy in one way at a time; the suite must find
// each within the scripts that it draws.
func TestCatches(t *testing.T) {
	good, err := direct.Registration.Parse("round=256")
	if err != nil {
		t.Fatal(err)
	}
	// What the suite says first depends on the script: any of the patterns.
	faults := map[string]string{
		"":                             "",
		"overlap":                      "in Segments, handle",
		"unaligned":                    "in Segments, handle",
		"depends on the stream number": "with other stream numbers",
		"depends on addresses":         "with other addresses",
		"overflows":                    "succeeded on a device",
		"hides an OOM":                 "an OOM moved NumOOMs",
		"accepts bad frees":            "must wrap ErrBadFree",
		"forgets to free":              "no free_completed event|must wrap ErrBadFree",
		"counts wrong":                 "requested_bytes",
		"counts no releases":           "num_device_free against the device",
		"not deterministic":            "differs from the first run|a bad free changed",
		"leaves a gap":                 "of segment",
		"leaks from the device":        "reserved_bytes against the device",
		"frees live blocks":            "which has not been freed",
		"ignores the limit":            "exceed the limit",
	}
	for fault, want := range faults {
		t.Run(fault, func(t *testing.T) {
			spec := *good
			spec.New = func(env policies.Env) (policies.Policy, error) {
				instances++
				if fault == "ignores the limit" {
					env.Limit = 0
				}
				p, err := good.New(env)
				return &broken{Policy: p, device: env.Device, fault: fault}, err
			}
			o := Options{}.withDefaults()
			gen := scriptGen(o)
			var got error
			for seed := 0; seed < 150 && got == nil; seed++ {
				s := gen.Example(seed)
				if got = verify(&spec, o, s); got == nil {
					got = compareRuns(&spec, o, s)
				}
			}
			if got == nil {
				got = verifyHuge(&spec, o)
			}
			switch {
			case want == "" && got != nil:
				t.Errorf("a correct policy fails: %v", got)
			case want != "" && got == nil:
				t.Error("the suite does not notice")
			case want != "" && !regexp.MustCompile(want).MatchString(got.Error()):
				t.Errorf("the suite says %q; expected to read %q", got, want)
			}
		})
	}
}

// TestDevice checks the device's own rules.
func TestDevice(t *testing.T) {
	d := NewDevice(8 << 20)
	a, err := d.Malloc(3 << 20)
	if err != nil || a%(2<<20) != 0 {
		t.Fatal(a, err)
	}
	b, _ := d.Malloc(512)
	if b >= a {
		t.Errorf("the second range at %#x is not below the first at %#x", b, a)
	}
	if _, err := d.Malloc(8 << 20); err == nil {
		t.Error("more than the capacity was handed out")
	}
	if free, total := d.MemInfo(); free != 5<<20-512 || total != 8<<20 {
		t.Errorf("MemInfo is %d, %d", free, total)
	}
	if d.Free(a, 1<<20) == nil || d.Free(a+512, 512) == nil {
		t.Error("a free of something else was accepted")
	}
	if err := d.Free(a, 3<<20); err != nil {
		t.Error(err)
	}
	if d.Free(a, 3<<20) == nil {
		t.Error("a double free was accepted")
	}
	if again, _ := d.Malloc(2 << 20); again != a+2<<20 {
		t.Errorf("the hole at %#x was not used: %#x", a, again)
	}
	r, _ := d.Reserve(64 << 20)
	if d.Map(r+64<<20, 2<<20, 2<<20) == nil || d.Map(r, 3<<20, 2<<20) == nil {
		t.Error("a map outside the reservation or of broken pages was accepted")
	}
	if err := d.Map(r, 2<<20, 2<<20); err != nil {
		t.Error(err)
	}
	if d.Map(r, 2<<20, 2<<20) == nil || d.Release(r, 64<<20) == nil || d.Unmap(r, 4<<20, 2<<20) == nil {
		t.Error("a double map, the release of a mapped reservation or an unmap of an unmapped page was accepted")
	}
	if err := d.Unmap(r, 2<<20, 2<<20); err != nil {
		t.Error(err)
	}
	if err := d.Release(r, 64<<20); err != nil {
		t.Error(err)
	}
	if d.Used() != 2<<20+512 {
		t.Errorf("%d bytes in use", d.Used())
	}
}
