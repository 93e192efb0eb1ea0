package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"allocsim/internal/pickle/pickletest"
	"allocsim/traces"
)

// load reads a snapshot, decompressed if it ends in .zst, with the sidecar
// beside it if there is one.
func load(t testing.TB, path string) ([]byte, *Sidecar) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".zst") {
		d, err := zstd.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if data, err = io.ReadAll(d); err != nil {
			t.Fatal(err)
		}
	}
	var side *Sidecar
	if js, err := os.ReadFile(strings.TrimSuffix(strings.TrimSuffix(path, ".zst"), ".pickle") + ".json"); err == nil {
		if side, err = ParseSidecar(js); err != nil {
			t.Fatal(err)
		}
	}
	return data, side
}

func mustRead(t testing.TB, path string) *traces.Recording {
	t.Helper()
	data, side := load(t, path)
	rec, err := Read(context.Background(), bytes.NewReader(data), Options{Source: filepath.Base(path), Sidecar: side})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// TestRead runs transcripts of small hand-made snapshots. Commands:
//
//	read [protocol=N] [sidecar=JSON] [keep=N]: the traces that come out; keep=N
//	  cuts the newest N entries off, as a ring buffer of N entries would
//	protocols: whether all pickle protocols give the same
//	bytes: reads a quoted Go string as a file
//	sidecar: parses a sidecar
//
// The input describes a snapshot, see parse.
func TestRead(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, path := range files {
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			opts := Options{}
			if arg, ok := td.Arg("sidecar"); ok {
				side, err := ParseSidecar([]byte(strings.Join(arg.Vals, ",")))
				if err != nil {
					t.Fatalf("%s: %v", td.Pos, err)
				}
				opts.Sidecar = side
			}
			read := func(data []byte) string {
				rec, err := Read(context.Background(), bytes.NewReader(data), opts)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				return dump(rec)
			}
			switch td.Cmd {
			case "read":
				protocol, keep := 4, 0
				td.MaybeScanArgs(t, "protocol", &protocol)
				td.MaybeScanArgs(t, "keep", &keep)
				return read(pickletest.Marshal(parse(t, td, keep), protocol))
			case "protocols":
				v := parse(t, td, 0)
				first := read(pickletest.Marshal(v, 0))
				for p := 1; p <= 5; p++ {
					if d := cmp.Diff(first, read(pickletest.Marshal(v, p))); d != "" {
						return fmt.Sprintf("protocol %d differs from 0: %s", p, d)
					}
				}
				return "protocols 0 to 5 give the same:\n" + first
			case "bytes":
				data, err := strconv.Unquote(td.Input)
				if err != nil {
					t.Fatalf("%s: %v", td.Pos, err)
				}
				return read([]byte(data))
			case "sidecar":
				side, err := ParseSidecar([]byte(td.Input))
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				return fmt.Sprintf("conf %v, fraction %g, torch %q, total %d, empty_cache at %v, stats %v\n", deref(side.Conf), side.Fraction, side.Torch, side.DeviceTotal, side.emptyCaches(), side.stats())
			}
			t.Fatalf("%s: unknown command %s", td.Pos, td.Cmd)
			return ""
		})
	}
}

func deref(s *string) string {
	if s == nil {
		return "unknown"
	}
	return strconv.Quote(*s)
}

// bytesOf reads a number with an optional K, M or G (binary).
func bytesOf(s string) (int64, error) {
	shift := 0
	for i, c := range "KMG" {
		if strings.HasSuffix(s, string(c)) {
			shift = 10 * (i + 1)
		}
	}
	if shift > 0 {
		s = s[:len(s)-1]
	}
	n, err := strconv.ParseInt(s, 0, 64)
	return n << shift, err
}

// parse makes a snapshot from lines:
//
//	device N                    the entries and segments that follow are its own
//	ACTION [ADDR] SIZE [key=value…]  a trace entry; times advance by 10 µs
//	seg ADDR SIZE small|large [stream=N] [pool=A,B] [expandable]
//	blk [ADDR] SIZE STATE [req=N]    a block of that segment, behind the last one
//	setting KEY VALUE
//	annotate NAME START|END TIME
//	bare                        the whole is a list of segments
//	notime, noaddr, nosettings  leave out what old versions lack
//
// A key of a trace entry is a field of it: stream, time_us, device_free,
// pool_id (A,B), frames (function:line,…); free is device_free.
func parse(t *testing.T, td *datadriven.TestData, keep int) any {
	var segments, annotations pickletest.List
	var settings pickletest.Dict
	devices := []pickletest.List{nil}
	device, now := 0, int64(1_000_000)
	bare, noTime, noAddr, noSettings := false, false, false, false
	var at int64
	frames := map[string]*pickletest.Dict{}
	for _, line := range strings.Split(td.Input, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		kv := func(from int) map[string]string {
			m := map[string]string{}
			for _, s := range f[from:] {
				k, v, _ := strings.Cut(s, "=")
				m[k] = v
			}
			return m
		}
		num := func(s string) int64 {
			n, err := bytesOf(s)
			if err != nil {
				t.Fatalf("%s: %q: %v", td.Pos, line, err)
			}
			return n
		}
		pair := func(s string) pickletest.Tuple {
			a, b, _ := strings.Cut(s, ",")
			return pickletest.Tuple{num(a), num(b)}
		}
		switch f[0] {
		case "bare":
			bare = true
		case "notime":
			noTime = true
		case "noaddr":
			noAddr = true
		case "nosettings":
			noSettings = true
		case "device":
			device = int(num(f[1]))
			for len(devices) <= device {
				devices = append(devices, nil)
			}
		case "setting":
			settings = append(settings, pickletest.KV(f[1], strings.Join(f[2:], " ")))
		case "annotate":
			annotations = append(annotations, pickletest.Dict{pickletest.KV("name", f[1]), pickletest.KV("stage", f[2]), pickletest.KV("device", device), pickletest.KV("time_us", num(f[3]))})
		case "seg":
			m := kv(4)
			at = num(f[1])
			s := pickletest.Dict{pickletest.KV("device", device), pickletest.KV("address", at), pickletest.KV("total_size", num(f[2])), pickletest.KV("segment_type", f[3])}
			stream := int64(0)
			if v, ok := m["stream"]; ok {
				stream = num(v)
			}
			s = append(s, pickletest.KV("stream", stream))
			if v, ok := m["pool"]; ok {
				s = append(s, pickletest.KV("segment_pool_id", pair(v)))
			}
			_, exp := m["expandable"]
			s = append(s, pickletest.KV("is_expandable", exp), pickletest.KV("frames", pickletest.List{}), pickletest.KV("blocks", &pickletest.List{}))
			segments = append(segments, s)
		case "blk":
			if strings.HasPrefix(f[1], "0x") {
				at = num(f[1])
				f = f[1:]
			}
			size := num(f[1])
			m := kv(3)
			b := pickletest.Dict{}
			if !noAddr {
				b = append(b, pickletest.KV("address", at))
			}
			b = append(b, pickletest.KV("size", size), pickletest.KV("state", f[2]))
			if v, ok := m["req"]; ok {
				b = append(b, pickletest.KV("requested_size", num(v)))
			} else if v, ok := m["real"]; ok {
				b = append(b, pickletest.KV("history", pickletest.List{pickletest.Dict{pickletest.KV("addr", at), pickletest.KV("real_size", num(v))}}))
			} else if !noAddr {
				b = append(b, pickletest.KV("requested_size", size))
			}
			at += size
			s := segments[len(segments)-1].(pickletest.Dict)
			l := s[len(s)-1].Value.(*pickletest.List)
			*l = append(*l, b)
		default:
			e := pickletest.Dict{pickletest.KV("action", f[0])}
			i := 1
			if f[0] != "oom" {
				e = append(e, pickletest.KV("addr", num(f[1])))
				i = 2
			}
			e = append(e, pickletest.KV("size", num(f[i])))
			m := kv(i + 1)
			stream := int64(0)
			if v, ok := m["stream"]; ok {
				stream = num(v)
			}
			e = append(e, pickletest.KV("stream", stream))
			if v, ok := m["t"]; ok {
				now = num(v)
			} else {
				now += 10
			}
			if !noTime {
				e = append(e, pickletest.KV("time_us", now))
			}
			if v, ok := m["free"]; ok {
				e = append(e, pickletest.KV("device_free", num(v)))
			}
			if v, ok := m["pool"]; ok {
				e = append(e, pickletest.KV("pool_id", pair(v)))
			}
			if v, ok := m["frames"]; ok {
				var l pickletest.List
				for _, name := range strings.Split(v, ",") {
					if frames[name] == nil {
						fn, line, _ := strings.Cut(name, ":")
						frames[name] = &pickletest.Dict{pickletest.KV("name", fn), pickletest.KV("filename", "model.py"), pickletest.KV("line", num(line))}
					}
					l = append(l, frames[name])
				}
				e = append(e, pickletest.KV("frames", l))
			}
			e = append(e, pickletest.KV("compile_context", "N/A"), pickletest.KV("user_metadata", ""))
			devices[device] = append(devices[device], e)
		}
	}
	if bare {
		return segments
	}
	traces := pickletest.List{}
	for _, l := range devices {
		if keep > 0 && len(l) > keep {
			l = l[len(l)-keep:]
		}
		traces = append(traces, l)
	}
	root := pickletest.Dict{pickletest.KV("segments", segments), pickletest.KV("device_traces", traces)}
	if !noSettings {
		root = append(root, pickletest.KV("allocator_settings", settings))
	}
	return append(root, pickletest.KV("external_annotations", annotations))
}

// dump prints a recording for the transcripts.
func dump(rec *traces.Recording) string {
	var b strings.Builder
	for _, t := range rec.Devices {
		fmt.Fprintf(&b, "device %d: streams %v, pools %v, start %d µs", t.Device, t.Streams, t.Pools, t.StartUS)
		if t.Meta.ConfKnown {
			fmt.Fprintf(&b, ", conf %q", t.Meta.Conf)
		}
		if t.Meta.Sidecar {
			fmt.Fprintf(&b, ", sidecar: fraction %g, total %d, torch %q", t.Meta.Fraction, t.Meta.DeviceTotal, t.Meta.Torch)
		}
		b.WriteString("\n")
		if t.Start != nil {
			b.WriteString(" start state:\n")
			dumpState(&b, t.Start)
		}
		if t.Recorded == nil {
			t.Recorded = &traces.Recorded{}
		}
		ooms := 0
		driver := t.Recorded.Driver
		flush := func(i int) {
			for len(driver) > 0 && int(driver[0].Before) <= i {
				d := driver[0]
				fmt.Fprintf(&b, "      %s 0x%x %d stream %d pool %d\n", d.Action, d.Addr, d.Size, d.Stream, d.Pool)
				driver = driver[1:]
			}
		}
		for i, e := range t.Events {
			flush(i)
			fmt.Fprintf(&b, "  %2d %6d %s", i, e.TimeUS, e.Kind)
			if e.ID != traces.NoBlock {
				fmt.Fprintf(&b, " #%d", e.ID)
			}
			if e.Kind == traces.Alloc || e.Kind == traces.OOM {
				fmt.Fprintf(&b, " %d bytes", e.Size)
			}
			if e.ID != traces.NoBlock {
				fmt.Fprintf(&b, " stream %d pool %d", e.Stream, e.Pool)
			}
			if e.Kind == traces.Alloc {
				fmt.Fprintf(&b, " at 0x%x", t.Recorded.Addr[e.ID])
			}
			if t.Stacks != nil && (e.Kind == traces.Alloc || e.Kind == traces.OOM) {
				if id := t.Stacks.ByBlock[e.ID]; id != traces.NoStack {
					for _, f := range t.Stacks.Stack[id] {
						fr := t.Stacks.Frames[f]
						fmt.Fprintf(&b, " < %s %s:%d", fr.Function, fr.File, fr.Line)
					}
				}
			}
			if e.Kind == traces.OOM {
				fmt.Fprintf(&b, ", device free %d", t.Recorded.OOMDeviceFree[ooms])
				ooms++
			}
			if i < t.StartEvents {
				b.WriteString(" (start)")
			}
			b.WriteString("\n")
		}
		flush(len(t.Events))
		for _, a := range t.Annotations {
			fmt.Fprintf(&b, " annotation %q end %v at %d\n", a.Name, a.End, a.TimeUS)
		}
		if t.Recorded.Final != nil {
			b.WriteString(" final state:\n")
			dumpState(&b, t.Recorded.Final)
		}
		for _, n := range t.Notes {
			fmt.Fprintf(&b, " note: %s\n", n)
		}
	}
	return b.String()
}

func dumpState(b *strings.Builder, s *traces.State) {
	for _, seg := range s.Segments {
		class := "large"
		if seg.Small {
			class = "small"
		}
		if seg.Expandable {
			class += " expandable"
		}
		fmt.Fprintf(b, "  segment 0x%x %d %s stream %d pool %d:", seg.Addr, seg.Size, class, seg.Stream, seg.Pool)
		at := seg.Addr
		for _, bl := range seg.Blocks {
			if bl.Addr != at {
				fmt.Fprintf(b, " HOLE")
			}
			at = bl.Addr + uint64(bl.Size)
			switch {
			case bl.State == traces.Inactive:
				fmt.Fprintf(b, " [free %d]", bl.Size)
			case bl.ID == traces.NoBlock:
				fmt.Fprintf(b, " [%s %d of %d]", stateName(bl.State), bl.Requested, bl.Size)
			default:
				fmt.Fprintf(b, " [#%d %s %d of %d]", bl.ID, stateName(bl.State), bl.Requested, bl.Size)
			}
		}
		b.WriteString("\n")
	}
}
