package snapshot

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
)

// jsonHead matches the beginning of a snapshot written with json.dump: the dict
// of _snapshot(), or the list of segments of memory_snapshot().
var jsonHead = regexp.MustCompile(`^(\xef\xbb\xbf)?\s*(\{\s*"(segments|device_traces|allocator_settings|external_annotations)"\s*:|\[\s*\{[^{}]*"(total_size|segment_type|segment_pool_id)"\s*:)`)

func detectJSON(head []byte) bool { return jsonHead.Match(head) }

// pickled turns JSON into the pickle of the same lists, dicts and values as it
// is read. The reader's errors are those of the JSON.
func pickled(r io.Reader) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		w := bufio.NewWriterSize(in, 1<<16)
		err := transcode(json.NewDecoder(r), w)
		if err == nil {
			err = w.Flush()
		}
		in.CloseWithError(err)
	}()
	return out
}

// maxJSONDepth is more than a snapshot nests.
const maxJSONDepth = 64

// transcode writes one JSON value as a pickle of protocol 2. Items go in
// batches, as pickle's own writer does it, so that the decoder keeps few.
func transcode(d *json.Decoder, w *bufio.Writer) error {
	const batch = 1000
	type open struct {
		dict bool
		n    int // values since the last mark
	}
	var stack []open
	w.WriteString("\x80\x02")
	d.UseNumber()
	appendAll := func(o *open) {
		if o.dict {
			w.WriteByte('u')
		} else {
			w.WriteByte('e')
		}
		o.n = 0
	}
	for {
		t, err := d.Token()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("the JSON is damaged or cut off at byte %d: %w", d.InputOffset(), err)
		}
		if c, ok := t.(json.Delim); ok && (c == ']' || c == '}') {
			appendAll(&stack[len(stack)-1])
			stack = stack[:len(stack)-1]
		} else {
			if len(stack) > 0 {
				o := &stack[len(stack)-1]
				if o.n == 2*batch {
					appendAll(o)
					w.WriteByte('(')
				}
				o.n++
			}
			switch v := t.(type) {
			case json.Delim:
				if len(stack) == maxJSONDepth {
					return fmt.Errorf("the JSON is nested deeper than any snapshot (at byte %d)", d.InputOffset())
				}
				stack = append(stack, open{dict: v == '{'})
				if v == '{' {
					w.WriteString("}(")
				} else {
					w.WriteString("](")
				}
			case string:
				w.WriteByte('X')
				w.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(v))))
				w.WriteString(v)
			case json.Number:
				number(w, v.String())
			case bool:
				if v {
					w.WriteByte(0x88)
				} else {
					w.WriteByte(0x89)
				}
			default:
				w.WriteByte('N')
			}
		}
		if len(stack) == 0 {
			return w.WriteByte('.')
		}
	}
}

// number writes an integer that fits 64 bits, as addresses and streams do, or a
// float.
func number(w *bufio.Writer, s string) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		w.WriteString("\x8a\x08")
		w.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
		return
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		w.WriteString("\x8a\x09")
		w.Write(append(binary.LittleEndian.AppendUint64(nil, n), 0))
		return
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		f = math.NaN()
	}
	w.WriteByte('G')
	w.Write(binary.BigEndian.AppendUint64(nil, math.Float64bits(f)))
}
