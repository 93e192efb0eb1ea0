package lines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func all(in string) (string, error) {
	r := NewReader(context.Background(), iotest.OneByteReader(strings.NewReader(in)))
	var out []string
	for {
		b, err := r.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return fmt.Sprintf("%d %v %q", r.Line(), r.Torn(), out), err
		}
		if len(b) > 40 {
			b = fmt.Appendf(nil, "%d bytes", len(b))
		}
		out = append(out, string(b))
	}
}

func TestNext(t *testing.T) {
	long := strings.Repeat("x", MaxLine-1)
	for _, c := range []struct{ in, want string }{
		{"", `0 false []`},
		{"a", `1 true ["a"]`},
		{"a\r\n\nb\n", `3 false ["a" "" "b"]`},
		{"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", "2 false [\"a\" \"\\ufeffb\"]"},
		{long + "\nb\n", fmt.Sprintf(`2 false ["%d bytes" "b"]`, MaxLine-1)},
	} {
		got, err := all(c.in)
		if err != nil || got != c.want {
			t.Errorf("%.20q: got %s, %v; want %s", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{long + "xx", long + "xx\n", "a\n" + long + long + long + long} {
		if got, err := all(in); err == nil || !strings.Contains(err.Error(), "longer than") {
			t.Errorf("%d bytes: got %s, %v", len(in), got, err)
		}
	}
	_, err := NewReader(context.Background(), iotest.ErrReader(errors.New("broken"))).Next()
	if err == nil || err.Error() != "line 1: broken" {
		t.Errorf("got %v", err)
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", `[1""]`},
		{"a, b ,,", `[1"a" 4"b" 7"" 8""]`},
		{`"a,b", "c""d",e`, `[1"a,b" 8"c\"d" 15"e"]`},
		{`a"b`, `error column 2: bare " in non-quoted-field`},
	} {
		fields, err := Split([]byte(c.in), nil)
		var parts []string
		for _, f := range fields {
			parts = append(parts, fmt.Sprintf("%d%q", f.Col, f.Text))
		}
		got := "[" + strings.Join(parts, " ") + "]"
		if err != nil {
			got = "error " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.in, got, c.want)
		}
	}
}
