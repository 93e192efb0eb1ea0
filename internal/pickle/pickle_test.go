package pickle_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"allocsim/internal/pickle"
	"allocsim/internal/pickle/pickletest"
)

// tree is a handler that does what real handlers avoid: it keeps everything.
type tree struct{ nodes []string }

func (t *tree) keep(s string) pickle.Value {
	t.nodes = append(t.nodes, s)
	return pickle.Record(uint64(len(t.nodes) - 1))
}

func (t *tree) text(d *pickle.Decoder, v pickle.Value) string {
	if n, ok := d.Int(v); ok {
		return strconv.FormatInt(n, 10)
	}
	if f, ok := d.Float(v); ok {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	if b, ok := v.Bool(); ok {
		return strconv.FormatBool(b)
	}
	if _, ok := v.StringID(); ok {
		return strconv.Quote(d.String(v))
	}
	if n, ok := v.Record(); ok {
		return t.nodes[n]
	}
	if v.IsNone() {
		return "None"
	}
	return "opaque"
}

func (t *tree) Dict(d *pickle.Decoder, pairs []pickle.Value, _ bool) (pickle.Value, error) {
	var parts []string
	for i := 0; i < len(pairs); i += 2 {
		parts = append(parts, t.text(d, pairs[i])+":"+t.text(d, pairs[i+1]))
	}
	return t.keep("{" + strings.Join(parts, ",") + "}"), nil
}

func (t *tree) Seq(d *pickle.Decoder, acc pickle.Value, items []pickle.Value, last bool) (pickle.Value, error) {
	var parts []string
	if acc != 0 {
		n, _ := acc.Record()
		parts = append(parts, t.nodes[n])
	}
	for _, v := range items {
		parts = append(parts, t.text(d, v))
	}
	s := strings.Join(parts, ",")
	if last {
		s = "[" + s + "]"
	}
	return t.keep(s), nil
}

func decode(r io.Reader) (string, error) {
	t := &tree{}
	d := pickle.NewDecoder(context.Background(), r, t, "known")
	v, err := d.Decode()
	if err != nil {
		return "", err
	}
	d.Release()
	return t.text(d, v), nil
}

// text is what tree makes of a test value.
func text(v any) string {
	var parts []string
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'e', -1, 64)
	case string:
		return strconv.Quote(v)
	case pickletest.Bytes:
		return "opaque"
	case *pickletest.Dict:
		return text(*v)
	case *pickletest.List:
		return text(*v)
	case pickletest.Dict:
		for _, p := range v {
			parts = append(parts, strconv.Quote(p.Key)+":"+text(p.Value))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case pickletest.List:
		for _, x := range v {
			parts = append(parts, text(x))
		}
	case pickletest.Tuple:
		for _, x := range v {
			parts = append(parts, text(x))
		}
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// anyValue draws a value of plain data, with shared parts.
func anyValue(t *rapid.T, depth int, shared *[]any) any {
	kinds := 7
	if depth > 0 {
		kinds = 12
	}
	switch k := rapid.IntRange(0, kinds-1).Draw(t, "kind"); k {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2, 3:
		return rapid.Int64().Draw(t, "int")
	case 4:
		return float64(rapid.Int32().Draw(t, "float")) / 8
	case 5:
		return rapid.StringN(0, 300, -1).Draw(t, "string")
	case 6:
		if len(*shared) > 0 {
			return rapid.SampledFrom(*shared).Draw(t, "shared")
		}
		return "known"
	case 7, 8:
		var d pickletest.Dict
		for i := range rapid.IntRange(0, 4).Draw(t, "pairs") {
			d = append(d, pickletest.KV(fmt.Sprintf("key%d", i), anyValue(t, depth-1, shared)))
		}
		if k == 7 {
			return d
		}
		*shared = append(*shared, &d)
		return &d
	case 9:
		var l pickletest.Tuple
		for range rapid.IntRange(0, 5).Draw(t, "items") {
			l = append(l, anyValue(t, depth-1, shared))
		}
		return l
	default:
		var l pickletest.List
		for range rapid.IntRange(0, 5).Draw(t, "items") {
			l = append(l, anyValue(t, depth-1, shared))
		}
		if k == 10 {
			return l
		}
		*shared = append(*shared, &l)
		return &l
	}
}

// TestRoundTrip: every protocol gives the same value, whole or byte by byte.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := anyValue(t, 4, new([]any))
		want := text(v)
		for protocol := 0; protocol <= 5; protocol++ {
			data := pickletest.Marshal(v, protocol)
			got, err := decode(bytes.NewReader(data))
			if err != nil || got != want {
				t.Fatalf("protocol %d: %q, %v\nwant %q\n% x", protocol, got, err, want, data)
			}
			got, err = decode(iotest.OneByteReader(bytes.NewReader(data)))
			if err != nil || got != want {
				t.Fatalf("protocol %d byte by byte: %q, %v\nwant %q", protocol, got, err, want)
			}
		}
	})
}

// TestTruncated: every proper prefix is reported as cut off.
func TestTruncated(t *testing.T) {
	v := pickletest.Dict{pickletest.KV("a", pickletest.List{1, 300, 70000, int64(1) << 40, "text", strings.Repeat("long", 100), 0.5, true, nil}), pickletest.KV("b", pickletest.Tuple{1, 2})}
	for protocol := 0; protocol <= 5; protocol++ {
		data := pickletest.Marshal(v, protocol)
		for n := range data {
			if _, err := decode(bytes.NewReader(data[:n])); !errors.Is(err, pickle.ErrTruncated) {
				t.Fatalf("protocol %d, %d of %d bytes: %v", protocol, n, len(data), err)
			}
		}
	}
}

// TestLong: strings and lists longer than the buffer and the chunks.
func TestLong(t *testing.T) {
	long := strings.Repeat("0123456789", 50_000)
	var l pickletest.List
	for i := range 30_000 {
		l = append(l, i)
	}
	v := pickletest.List{long, l, long, pickletest.Dict{pickletest.KV(long, l)}}
	for protocol := 0; protocol <= 5; protocol++ {
		got, err := decode(bytes.NewReader(pickletest.Marshal(v, protocol)))
		if err != nil {
			t.Fatal(err)
		}
		// A list that came in parts has no brackets between them.
		if got != text(v) {
			t.Fatalf("protocol %d: %d bytes of text, want %d", protocol, len(got), len(text(v)))
		}
	}
}

// TestLengthsAreNotBelieved: a length in the file costs nothing until that
// many bytes have arrived.
func TestLengthsAreNotBelieved(t *testing.T) {
	for _, head := range []string{"\x80\x04X\xff\xff\xff\xff", "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f", "\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff", "\x80\x04\x8b\xff\xff\xff\x7f", "\x80\x04T\xff\xff\xff\x7f"} {
		data := append([]byte(head), "only a little"...)
		n := testing.AllocsPerRun(5, func() {
			if _, err := decode(bytes.NewReader(data)); !errors.Is(err, pickle.ErrTruncated) {
				t.Fatalf("% x: %v", head, err)
			}
		})
		if n > 100 {
			t.Errorf("% x: %v allocations", head, n)
		}
	}
}

func TestReaderErrors(t *testing.T) {
	broken := errors.New("disk on fire")
	if _, err := decode(io.MultiReader(strings.NewReader("\x80\x04]"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("got %v, want the reader's error", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := pickle.NewDecoder(ctx, strings.NewReader("\x80\x04N."), &tree{}).Decode(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	var read int64
	d := pickle.NewDecoder(context.Background(), strings.NewReader("\x80\x04N."), &tree{})
	d.Progress = func(n int64) { read = n }
	if _, err := d.Decode(); err != nil || read != 4 {
		t.Errorf("progress %d, %v; want 4 bytes", read, err)
	}
}

// TestOpcodes runs hand-made pickles. Each line of a transcript is an opcode's
// byte as a character or in hexadecimal, followed by its argument in a form
// that depends on its kind: "text" is written as it is, with Go's escapes; uN
// numbers are little-endian of N bytes.
func TestOpcodes(t *testing.T) {
	datadriven.RunTest(t, "testdata/opcodes.txt", func(t *testing.T, td *datadriven.TestData) string {
		var data []byte
		for _, line := range strings.Split(td.Input, "\n") {
			b, err := assemble(line)
			if err != nil {
				t.Fatalf("%s: %v", td.Pos, err)
			}
			data = append(data, b...)
		}
		got, err := decode(bytes.NewReader(data))
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		return got + "\n"
	})
}

var names = map[string]byte{
	"MARK": '(', "STOP": '.', "POP": '0', "POP_MARK": '1', "DUP": '2', "FLOAT": 'F', "INT": 'I', "BININT": 'J', "BININT1": 'K',
	"LONG": 'L', "BININT2": 'M', "NONE": 'N', "STRING": 'S', "BINSTRING": 'T', "SHORT_BINSTRING": 'U', "UNICODE": 'V', "BINUNICODE": 'X',
	"BINBYTES": 'B', "SHORT_BINBYTES": 'C', "APPEND": 'a', "DICT": 'd', "APPENDS": 'e', "GET": 'g', "BINGET": 'h', "LONG_BINGET": 'j',
	"LIST": 'l', "PUT": 'p', "BINPUT": 'q', "LONG_BINPUT": 'r', "SETITEM": 's', "TUPLE": 't', "SETITEMS": 'u', "BINFLOAT": 'G',
	"EMPTY_DICT": '}', "EMPTY_LIST": ']', "EMPTY_TUPLE": ')', "PROTO": 0x80, "TUPLE1": 0x85, "TUPLE2": 0x86, "TUPLE3": 0x87,
	"NEWTRUE": 0x88, "NEWFALSE": 0x89, "LONG1": 0x8a, "LONG4": 0x8b, "SHORT_BINUNICODE": 0x8c, "BINUNICODE8": 0x8d, "BINBYTES8": 0x8e,
	"EMPTY_SET": 0x8f, "ADDITEMS": 0x90, "FROZENSET": 0x91, "MEMOIZE": 0x94, "FRAME": 0x95, "BYTEARRAY8": 0x96, "NEXT_BUFFER": 0x97,
	"READONLY_BUFFER": 0x98, "GLOBAL": 'c', "STACK_GLOBAL": 0x93, "REDUCE": 'R', "BUILD": 'b', "INST": 'i', "OBJ": 'o', "NEWOBJ": 0x81,
	"NEWOBJ_EX": 0x92, "EXT1": 0x82, "EXT2": 0x83, "EXT4": 0x84, "PERSID": 'P', "BINPERSID": 'Q',
}

// assemble turns "NAME arg arg" into bytes: arguments are quoted text or u1:N,
// u2:N, u4:N, u8:N, f8:X (big-endian float) or hex:BYTES.
func assemble(line string) ([]byte, error) {
	name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	var out []byte
	if op, ok := names[name]; ok {
		out = append(out, op)
	} else {
		b, err := hex.DecodeString(strings.TrimPrefix(name, "0x"))
		if err != nil {
			return nil, fmt.Errorf("unknown opcode %q", name)
		}
		out = append(out, b...)
	}
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		if rest[0] == '"' {
			q, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, err
			}
			s, _ := strconv.Unquote(q)
			out = append(out, s...)
			rest = rest[len(q):]
			continue
		}
		var arg string
		arg, rest, _ = strings.Cut(rest, " ")
		kind, value, _ := strings.Cut(arg, ":")
		n, _ := strconv.ParseUint(value, 0, 64)
		switch kind {
		case "u1":
			out = append(out, byte(n))
		case "u2":
			out = binary.LittleEndian.AppendUint16(out, uint16(n))
		case "u4":
			out = binary.LittleEndian.AppendUint32(out, uint32(n))
		case "u8":
			out = binary.LittleEndian.AppendUint64(out, n)
		case "f8":
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, err
			}
			out = binary.BigEndian.AppendUint64(out, math.Float64bits(f))
		case "hex":
			b, err := hex.DecodeString(value)
			if err != nil {
				return nil, err
			}
			out = append(out, b...)
		default:
			return nil, fmt.Errorf("unknown argument %q", arg)
		}
	}
	return out, nil
}

func FuzzDecode(f *testing.F) {
	v := pickletest.Dict{pickletest.KV("a", pickletest.List{1, 300, 70000, int64(1) << 60, "text", 0.5, true, nil}), pickletest.KV("b", pickletest.Tuple{1, 2})}
	for protocol := 0; protocol <= 5; protocol++ {
		f.Add(pickletest.Marshal(v, protocol))
	}
	f.Add([]byte("(dp0\nVa\n(lp1\nI1\nag1\nas."))
	f.Add([]byte("\x80\x02}q\x00(U\x01aK\x01h\x00h\x00ue."))
	var l pickletest.List
	for i := range 10 {
		l = append(l, pickletest.Dict{pickletest.KV("a", "N/A"), pickletest.KV("b", i*500), pickletest.KV("c", pickletest.List{&v, &v})})
	}
	f.Add(pickletest.Marshal(l, 4))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		// count does not keep text, which shared parts would make explode.
		d := pickle.NewDecoder(context.Background(), bytes.NewReader(data), count{})
		if v, err := d.Decode(); err == nil && v == 0 {
			t.Fatal("no value and no error")
		}
		compareWays(t, data, 0)
	})
}

type count struct{}

func (count) Dict(d *pickle.Decoder, pairs []pickle.Value, _ bool) (pickle.Value, error) {
	for _, v := range pairs {
		use(d, v)
	}
	return pickle.Record(uint64(len(pairs))), nil
}

func (count) Seq(d *pickle.Decoder, acc pickle.Value, items []pickle.Value, last bool) (pickle.Value, error) {
	for _, v := range items {
		use(d, v)
	}
	return pickle.Record(uint64(len(items))), nil
}

// use calls what a handler may call on any value that it is given.
func use(d *pickle.Decoder, v pickle.Value) {
	d.Int(v)
	d.Float(v)
	_ = d.String(v)
	_ = v.Kind()
	if v.Kind() == "an unfinished container" || v == 0 {
		panic("a handler got a container under construction")
	}
}
