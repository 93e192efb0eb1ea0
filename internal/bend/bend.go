// Package bend checks tests: it bends one rule of the product at a time and
// demands that a test then fails. A test that stays green while the decision
// it guards says something else guards nothing.
//
// A package lists its bends in one test:
//
//	func TestBends(t *testing.T) {
//		bend.Run(t, []bend.Bend{
//			{Rule: "a limit that is met exactly fails", File: "fit.go",
//				Old: "need > limit", Bent: "need >= limit", Test: "TestFit"},
//		})
//	}
//
// Old must stand exactly once in the file. Its place is taken by Bent, the
// package's tests are compiled, and the named test is run: it must fail, with
// a failed check (not a panic, not a build that breaks, not a run without
// end), and the same test must pass while nothing is bent.
//
// The tree is never touched: the compiler reads the bent text through an
// overlay (go help build, -overlay). Nor is a program built for each bend. All
// bends of one list go into one test binary, and the environment variable
// ALLOCSIM_BEND says which of them is bent: a function that holds bends has
// its body once more for each,
//
//	func fits(need, limit int64) bool {
//		if bendActive == 1 {
//			return !(need >= limit) // the bent body
//		}
//		return !(need > limit)
//	}
//
// and a package variable holds both values. Only a bend elsewhere, as of a
// constant, a type or a signature, costs a build of its own: bend such a rule
// where it is used, if there is a place.
//
// When a bend survives, the test is missing, not the bend wrong: write down
// what must be true, from enumeration, hand arithmetic, another
// implementation or a real run, never from the output of the code itself.
// When Old is not found any more, the code has moved: put the rule's new text
// there. When the rule is gone, so is the bend.
package bend

import (
	"cmp"
	"os"
	"strings"
	"sync"
	"testing"
)

// A Bend is one rule, how to break it, and the test that holds it.
type Bend struct {
	Rule string // what the bent program does wrong, in words: the subtest's name
	File string // the file, from the folder of the calling test: "fit.go", "../policies/torch/malloc.go"
	Old  string // the text that states the rule; exactly once in File
	Bent string // the text that takes its place
	Test string // the test that must fail: "TestFit", "TestFit/exactly", "TestFit|TestPlan"
	Want string // text that the failure must contain; "panic:" where a panic is the failure; empty for any
}

// Run demands of every bend that its test fails, and of the tests that they
// pass when nothing is bent. It is the whole of a test of the package that
// holds the tests; with -short it skips.
func Run(t *testing.T, bends []Bend) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the package's tests with bent rules")
	}
	if os.Getenv(variable) != "" {
		t.Skip("a bent run")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	w, err := build(dir, t.TempDir(), bends)
	if err != nil {
		t.Fatal(err)
	}
	red := make(map[string]bool) // tests that fail although nothing is bent
	var mu sync.Mutex
	t.Run("nothing is bent", func(t *testing.T) {
		tests := make(map[string]bool)
		for _, b := range bends {
			if b.Test == "" || tests[b.Test] {
				continue
			}
			tests[b.Test] = true
			t.Run(b.Test, func(t *testing.T) {
				t.Parallel()
				if err := w.straight(b.Test); err != nil {
					mu.Lock()
					red[b.Test] = true
					mu.Unlock()
					t.Error(err)
				}
			})
		}
	})
	for i, b := range bends {
		t.Run(cmp.Or(b.Rule, "no rule given"), func(t *testing.T) {
			t.Parallel()
			if w.errors[i] != nil {
				t.Fatal(w.errors[i])
			}
			if red[b.Test] {
				t.Skip("its test fails although nothing is bent")
			}
			if err := w.bent(i, b); err != nil {
				t.Errorf("%s: %q for %q: %v", b.File, oneLine(b.Bent), oneLine(b.Old), err)
			}
		})
	}
}

// oneLine is s in one line that is short enough for a message.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return s
}
