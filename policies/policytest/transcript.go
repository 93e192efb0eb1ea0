package policytest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"allocsim/internal/bytesize"
	"allocsim/policies"
)

// Transcripts runs every transcript in a folder: files in datadriven form
// whose "run" commands hold one step per line and print what the policy did.
// State carries over from one command of a file to the next.
//
//	device [SIZE]             a fresh device of SIZE bytes, or unlimited
//	limit SIZE                the next policy's Env.Limit
//	policy OPTIONS            a fresh policy, made by parse
//	alloc ID SIZE [STREAM]    prints the block's place and size
//	free ID [pending]         gives it back
//	complete ID               ends a pending free
//	empty                     EmptyCache
//	squeeze N, relax          the device refuses after N more calls; stops that
//	stats NAME…               prints flat statistics or the policy's native ones
//	segments                  prints the segments with their blocks
//
// An ID may be a range, a[1..128], which makes one step of each and prints one
// line for all; a SIZE of # is then the index. Places are written as the number of
// the segment, in the order in which the device gave them, and the offset.
// Run the tests with -rewrite to write the files anew.
func Transcripts(t *testing.T, dir string, parse func(options string) (*policies.Spec, error)) {
	datadriven.Walk(t, dir, func(t *testing.T, path string) {
		r := &transcript{parse: parse, device: NewDevice(0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "run" {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			r.out.Reset()
			for line := range strings.Lines(d.Input) {
				if err := r.line(strings.Fields(line)); err != nil {
					d.Fatalf(t, "%s: %v", strings.TrimSpace(line), err)
				}
			}
			return r.out.String()
		})
	})
}

type transcript struct {
	parse  func(string) (*policies.Spec, error)
	device *Device
	limit  int64
	policy policies.Policy
	blocks map[string]policies.Block
	// segments are the ranges in the order in which they were obtained.
	segments []policies.Event
	out      strings.Builder
}

// Observe implements policies.Observer: it numbers segments.
func (r *transcript) Observe(e *policies.Event) {
	switch e.Action {
	case policies.ActionSegmentAlloc:
		r.segments = append(r.segments, *e)
		fmt.Fprintf(&r.out, "  segment %d of %d bytes\n", len(r.segments), e.Size)
	case policies.ActionSegmentMap:
		// Only the first range of a reservation is a place of its own.
		if r.find(e.Addr) < 0 {
			first := *e
			first.Size = AddressSpace
			r.segments = append(r.segments, first)
		}
		fmt.Fprintf(&r.out, "  map %d bytes at %s\n", e.Size, r.place(e.Addr))
	case policies.ActionSegmentFree:
		fmt.Fprintf(&r.out, "  segment %d is returned\n", r.find(e.Addr)+1)
		r.segments[r.find(e.Addr)].Size = 0
	case policies.ActionSegmentUnmap:
		fmt.Fprintf(&r.out, "  unmap %d bytes at %s\n", e.Size, r.place(e.Addr))
	case policies.ActionRetry:
		r.out.WriteString("  retry\n")
	}
}

func (r *transcript) find(addr uint64) int {
	return slices.IndexFunc(r.segments, func(e policies.Event) bool {
		return addr >= e.Addr && addr < e.Addr+uint64(e.Size)
	})
}

func (r *transcript) place(addr uint64) string {
	i := r.find(addr)
	if i < 0 {
		return fmt.Sprintf("%#x", addr)
	}
	return fmt.Sprintf("%d+%d", i+1, addr-r.segments[i].Addr)
}

// expand turns a[1..3] into a1 a2 a3 with their indices.
func expand(id string) (names []string, index []int64, err error) {
	name, rest, isRange := strings.Cut(id, "[")
	if !isRange {
		return []string{id}, []int64{0}, nil
	}
	var from, to int64
	if _, err := fmt.Sscanf(rest, "%d..%d]", &from, &to); err != nil {
		return nil, nil, fmt.Errorf("range %q: %w", id, err)
	}
	for i := from; i <= to; i++ {
		names, index = append(names, name+strconv.FormatInt(i, 10)), append(index, i)
	}
	return names, index, nil
}

func (r *transcript) line(f []string) error {
	if len(f) == 0 {
		return nil
	}
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	switch f[0] {
	case "device":
		capacity := int64(0)
		if len(f) > 1 {
			n, err := bytesize.Parse(f[1])
			if err != nil {
				return err
			}
			capacity = n
		}
		r.device = NewDevice(capacity)
		return nil
	case "limit":
		n, err := bytesize.Parse(arg(1))
		r.limit = n
		return err
	case "policy":
		spec, err := r.parse(arg(1))
		if err == nil {
			r.policy, err = spec.New(policies.Env{Device: r.device, Limit: r.limit})
		}
		if err != nil {
			fmt.Fprintf(&r.out, "%s: %v\n", strings.Join(f, " "), err)
			return nil
		}
		r.blocks, r.segments = make(map[string]policies.Block), nil
		for _, s := range r.policy.Segments(nil) {
			r.segments = append(r.segments, policies.Event{Addr: s.Addr, Size: s.Size})
			fmt.Fprintf(&r.out, "segment %d of %d bytes at the start\n", len(r.segments), s.Size)
		}
		r.policy.Observe(r)
		return nil
	case "squeeze":
		n, err := strconv.ParseInt(arg(1), 10, 64)
		r.device.FailAfter(n)
		return err
	case "relax":
		r.device.FailAfter(-1)
		return nil
	}
	if r.policy == nil {
		return errors.New("there is no policy yet")
	}
	switch f[0] {
	case "alloc":
		return r.alloc(arg(1), arg(2), arg(3))
	case "free", "complete":
		return r.free(f[0], arg(1), arg(2) == "pending")
	case "empty":
		r.out.WriteString("empty cache\n")
		return r.policy.EmptyCache()
	case "stats":
		flat := r.policy.Stats().Flat()
		if n, ok := r.policy.(policies.Native); ok {
			for k, v := range n.NativeStats() {
				flat[k] = v
			}
		}
		for _, name := range f[1:] {
			v, ok := flat[name]
			if !ok {
				return fmt.Errorf("no statistic %q", name)
			}
			fmt.Fprintf(&r.out, "%s %d\n", name, v)
		}
		return nil
	case "segments":
		for _, s := range r.policy.Segments(nil) {
			fmt.Fprintf(&r.out, "%s %d bytes, stream %d:", r.place(s.Addr), s.Size, s.Stream)
			for _, b := range s.Blocks {
				fmt.Fprintf(&r.out, " %s %d", [...]string{"free", "live", "pending"}[b.State], b.Size)
			}
			r.out.WriteString("\n")
		}
		return nil
	}
	return errors.New("unknown step")
}

func (r *transcript) alloc(id, sizeText, streamText string) error {
	names, index, err := expand(id)
	if err != nil {
		return err
	}
	stream := uint64(0)
	if streamText != "" {
		if stream, err = strconv.ParseUint(streamText, 10, 16); err != nil {
			return err
		}
	}
	failed := 0
	for i, name := range names {
		size := index[i]
		if sizeText != "#" {
			if size, err = bytesize.Parse(sizeText); err != nil {
				return err
			}
		}
		if _, used := r.blocks[name]; used {
			return fmt.Errorf("%s is allocated already", name)
		}
		b, err := r.policy.Malloc(policies.Request{Size: size, Stream: uint16(stream)})
		switch {
		case err == nil:
			r.blocks[name] = b
		case errors.Is(err, policies.ErrOutOfMemory):
			failed++
		default:
			return err
		}
		if len(names) > 1 {
			continue
		}
		if err != nil {
			fmt.Fprintf(&r.out, "%s: %v\n", name, err)
			continue
		}
		for _, s := range r.policy.Segments(nil) {
			for _, sb := range s.Blocks {
				if sb.Handle == b.Handle {
					fmt.Fprintf(&r.out, "%s: %s %d bytes\n", name, r.place(b.Addr), sb.Size)
				}
			}
		}
	}
	if len(names) > 1 {
		fmt.Fprintf(&r.out, "%s: %d allocated, %d out of memory\n", id, len(names)-failed, failed)
	}
	return nil
}

func (r *transcript) free(step, id string, pending bool) error {
	names, _, err := expand(id)
	if err != nil {
		return err
	}
	for _, name := range names {
		b, ok := r.blocks[name]
		if !ok {
			return fmt.Errorf("%s is not allocated", name)
		}
		if step == "complete" {
			err = r.policy.FreeCompleted(b.Handle)
		} else {
			err = r.policy.Free(b.Handle, pending)
		}
		if err != nil {
			return err
		}
		if !pending {
			delete(r.blocks, name)
		}
	}
	fmt.Fprintf(&r.out, "%s %s\n", step, id)
	return nil
}
