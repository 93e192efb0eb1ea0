package dryrun_test

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends how operations and storages become requests.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "a library's workspace comes with every product", File: "walk.go", Test: "TestRead",
			Old: "w.library[k] = true\n", Bent: "w.library[k] = false\n"},
		{Rule: "threads share a library's workspace", File: "walk.go", Test: "TestRead",
			Old: "k := libraryKey{c.Thread, c.Stream, s.N}", Bent: "k := libraryKey{0, c.Stream, s.N}"},
		{Rule: "streams share a library's workspace", File: "walk.go", Test: "TestRead",
			Old: "k := libraryKey{c.Thread, c.Stream, s.N}", Bent: "k := libraryKey{c.Thread, 0, s.N}"},
		{Rule: "results come in the order of the file", File: "walk.go", Test: "TestRead",
			Old: "take(of[s.N], s.Bytes)", Bent: "_ = of"},
		{Rule: "a block used on another stream is free at once", File: "walk.go", Test: "TestRead",
			Old: "if len(s.others) == 0 {", Bent: "if len(s.others) >= 0 {"},
		{Rule: "a wait for one stream completes all frees", File: "walk.go", Test: "TestRead",
			Old: "if stream == nil || len(p.streams) == 0 {", Bent: "if true {"},
		{Rule: "a step completes nothing", File: "walk.go", Test: "TestRead",
			Old: "Name: fmt.Sprintf(\"Optimizer.step#%d\", e.Step)})\n\t\tw.complete(nil)", Bent: "Name: fmt.Sprintf(\"Optimizer.step#%d\", e.Step)})"},
		{Rule: "a block's own stream counts as another", File: "walk.go", Test: "TestRead",
			Old: "l.Stream != s.stream && ", Bent: ""},
		{Rule: "a resized storage gives back before it asks", File: "walk.go", Test: "TestRead",
			Old: "old := *s\n\t\ts.block = traces.NoBlock", Bent: "old := *s\n\t\tw.free(&old)\n\t\ts.block = traces.NoBlock"},
		{Rule: "pools are ignored", File: "walk.go", Test: "TestRead",
			Old: "n := len(w.pools); n > 0", Bent: "n := len(w.pools); n > 9"},
		{Rule: "an emptied cache is forgotten", File: "walk.go", Test: "TestRead",
			Old: "w.b.EmptyCache(w.tick())", Bent: "w.tick()"},
		{Rule: "tensors of the CPU take workspaces", File: "walk.go", Test: "TestRead",
			Old: "if !w.hostOnly(&op) {", Bent: "if true {"},
		{Rule: "a dry run passes for a recording", File: "walk.go", Test: "TestNotes",
			Old: "\"Evidence: dry run. ", Bent: "\"Recorded: "},
		{Rule: "operations without a rule go unsaid", File: "walk.go", Test: "TestNotes",
			Old: "w.unknown[c.Op]++", Bent: "w.unknown[c.Op] += 0"},
		{Rule: "a file without an end is complete", File: "walk.go", Test: "TestNotes",
			Old: "add(\"The dry run is incomplete: ", Bent: "add(\"The dry run is complete: "},
		{Rule: "an operation stands for the program's frames", File: "stacks.go", Test: "TestStacks",
			Old: "st = append(append(st, s.frame(traces.Frame{Function: op})), frames...)", Bent: "st = append(st, s.frame(traces.Frame{Function: op}))"},
		{Rule: "a shape may be negative", File: "record.go", Test: "TestHostile",
			Old: "if d < 0 || d > 0", Bent: "if d > 0"},
		{Rule: "a storage may come twice", File: "walk.go", Test: "TestHostile",
			Old: "s != nil && s.block != traces.NoBlock {\n\t\t\treturn errRecord(\"storage %d exists", Bent: "s != nil && s.block == traces.NoBlock {\n\t\t\treturn errRecord(\"storage %d exists"},
		{Rule: "a newer format is read", File: "dryrun.go", Test: "TestHostile",
			Old: "if h.Version != version {", Bent: "if h.Version < version {"},
	})
}
