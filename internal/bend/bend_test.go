package bend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// world is a module with one rule of each kind that can be bent.
var world = map[string]string{
	"go.mod": "module world\n\ngo 1.26\n",
	"world.go": `package world

import "strings"

// Doc comments and the text before a rule stay as they are.
func fits(need, limit int64) bool {
	return need <= limit
}

type set[T ~int] struct{ items []T }

func (s *set[T]) add(item T) {
	for _, x := range s.items {
		if x == item {
			return
		}
	}
	s.items = append(s.items, item)
}

func firstPair(rows [][]int, sum int) (found bool, row int) {
rows:
	for i, r := range rows {
		for j := 1; j < len(r); j++ {
			if r[j-1] < 0 {
				continue rows
			}
			if r[j-1]+r[j] == sum {
				return true, i
			}
		}
	}
	return false, -1
}

var order = []string{"small", "large"}

const page = 512

func round(n int64) int64 { return (n + page - 1) / page * page }

func down(n int) int {
	for n > 3 {
		n--
	}
	return n
}

func words(s string) []string { return strings.Fields(s) }
`,
	"world_test.go": `package world

import (
	"strings"
	"testing"
)

func TestFits(t *testing.T) {
	t.Run("exactly", func(t *testing.T) {
		if !fits(5, 5) {
			t.Error("met exactly")
		}
	})
	if fits(6, 5) {
		t.Error("too much")
	}
}

func TestSet(t *testing.T) {
	var s set[int]
	s.add(1)
	s.add(1)
	s.add(2)
	if len(s.items) != 2 {
		t.Error("not a set")
	}
}

func TestPair(t *testing.T) {
	if found, row := firstPair([][]int{{1, 2}, {-1, 3, 4}, {3, 4}}, 7); !found || row != 2 {
		t.Error("wrong row")
	}
}

func TestOrder(t *testing.T) {
	if strings.Join(order, " ") != "small large" {
		t.Error("wrong order")
	}
}

func TestRound(t *testing.T) {
	if round(1) != 512 {
		t.Error("not a page")
	}
}

func TestDown(t *testing.T) {
	if down(9) != 3 {
		t.Error("not three")
	}
}

func TestWords(t *testing.T) { words("") }

func TestRed(t *testing.T) { t.Error("red in any case") }
`,
}

func TestBends(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a module")
	}
	dir := t.TempDir()
	for name, text := range world {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		old, bent, test, want string
		err                   string // the complaint; empty when the bend is caught
	}{
		{"need <= limit", "need < limit", "TestFits", "", ""},
		{"need <= limit", "need < limit", "TestFits/exactly", "met exactly", ""},
		{"need <= limit", "need-1 <= limit", "TestFits", "too much", ""},
		{"need <= limit", "need-9 <= limit", "TestDown", "", "survives: TestDown passes"},
		{"need <= limit", "need < limit", "TestSet", "", "survives: TestSet passes"},
		{"need <= limit", "need < limit", "TestFits", "too much", `for another reason than "too much"`},
		{"if x == item {", "if x == item+item {", "TestSet", "", ""},
		{"continue rows", "if sum == 0 { continue rows }", "TestPair", "", ""},
		{"return true, i", "row = i + 1; found = true; return", "TestPair", "", ""},
		{`"small", "large"`, `"large", "small"`, "TestOrder", "", ""},
		{`"small", "large"`, `"small"`, "TestOrder", "", ""},
		{"page = 512", "page = 1024", "TestRound", "", ""},
		{"page = 512", "page = 1024", "TestWords", "", "survives: TestWords passes"},
		{"n--", "n++; if n > 1<<62 { n = 4 }", "TestDown", "", "TestDown does not end"},
		{"n--", `panic("down")`, "TestDown", "", "TestDown panics"},
		{"n--", `panic("down")`, "TestDown", "panic: down", ""},
		{"strings.Fields(s)", "strings.Field(s)", "TestWords", "", "does not compile there: line 49:"},
		{"page = 512", "page = nothing", "TestRound", "", "undefined: nothing"},
		{"return", "no", "TestFits", "", "7 times: add text around it"},
		{"need == limit", "need < limit", "TestFits", "", "the code has moved"},
		{"need <= limit", "need < limit", "TestFit", "", "there is no test TestFit"},
		{"need <= limit", "need < limit", "TestRed", "", "TestRed fails although nothing is bent"},
		{"need <= limit", "need < limit", "", "", "no test is named"},
		{"need <= limit", "need <= limit", "TestFits", "", "another one in its place"},
	}
	var bends []Bend
	for _, c := range cases {
		bends = append(bends, Bend{File: "world.go", Old: c.old, Bent: c.bent, Test: c.test, Want: c.want})
	}
	w, err := build(dir, t.TempDir(), bends)
	if err != nil {
		t.Fatal(err)
	}
	w.timeout = 5 * time.Second
	for i, c := range cases {
		err := w.errors[i]
		if err == nil {
			err = w.straight(c.test)
		}
		if err == nil {
			err = w.bent(i, bends[i])
		}
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%q for %q, %s: %v", c.bent, c.old, c.test, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q for %q, %s: complaint is %v, want %q", c.bent, c.old, c.test, err, c.err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(world) {
		t.Errorf("the tree has %d files, %v; want %d", len(entries), err, len(world))
	}
	for name, text := range world {
		if now, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(now) != text {
			t.Errorf("%s is touched, %v", name, err)
		}
	}
}

// TestFileIsMissing: a bend of a file that is not there is a clear error, not
// a bend that survives.
func TestFileIsMissing(t *testing.T) {
	_, err := build(t.TempDir(), t.TempDir(), []Bend{{File: "no.go", Old: "a", Bent: "b", Test: "TestA"}})
	if err == nil || !strings.Contains(err.Error(), "no.go") {
		t.Errorf("error is %v", err)
	}
}
