package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestJSONIsDocumented demands that docs/reading-the-numbers.md names every
// field that a command prints.
func TestJSONIsDocumented(t *testing.T) {
	atRoot(t)
	text, err := os.ReadFile("docs/reading-the-numbers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text2, _ := strings.Cut(string(text), "\n## JSON\n")
	named := make(map[string]bool)
	for _, code := range regexp.MustCompile("`[^`]+`").FindAllString(text2, -1) {
		for _, w := range regexp.MustCompile(`[a-z0-9_]+`).FindAllString(code, -1) {
			named[w] = true
		}
	}
	const r = "testdata/recordings/"
	tmp := t.TempDir()
	for _, line := range []string{
		"inspect " + r + "leak_outputs__leakpy.pickle.zst --leaks --top --capacity 24GiB",
		"inspect " + r + "gnn__tight.pickle.zst",
		"replay " + r + "gnn__tight.pickle.zst --span",
		"check " + r + "gnn__default.pickle.zst --conf expandable_segments:True",
		"compare " + r + "fuzz0015.pickle.zst",
		"tune " + r + "gnn__tight.pickle.zst",
		"tune " + r + "oom_retry__f12.pickle.zst",
		"plan " + r + "fuzz0015.pickle.zst",
		"plan --colocate " + r + "fuzz0015.pickle.zst " + r + "fuzz0063.pickle.zst",
		"scale --at 16=" + r + "scale_resnet50__bs16seq0.pickle.zst --at 32=" + r + "scale_resnet50__bs32seq0.pickle.zst --predict 64 --gpu T4",
		"conf expandable_segments:True,max_split_size_mb=3",
		"diagnose " + r + "gnn__tight.json",
		"validate " + r + "fuzz0015.pickle.zst --engine sim",
		"synth bert-base --steps 1",
		"convert " + r + "fuzz0015.pickle.zst {TMP}/t.csv",
		"plot " + r + "fuzz0015.pickle.zst -o {TMP}/t.svg",
		"report " + r + "fuzz0063.pickle.zst -o {TMP}/t.html",
	} {
		out, errs, code := execute(t, "", append(strings.Fields(strings.ReplaceAll(line, "{TMP}", tmp)), "--json")...)
		var doc any
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			t.Errorf("allocsim %s --json: exit code %d, %v, %s", line, code, err, errs)
			continue
		}
		missing := make(map[string]bool)
		fields(doc, func(name string) {
			if !named[name] {
				missing[name] = true
			}
		})
		for name := range missing {
			t.Errorf("allocsim %s --json: docs/reading-the-numbers.md does not name %q", strings.Fields(line)[0], name)
		}
	}
}

// fields calls f for each field name of a document, without those that are
// data or defined elsewhere: PyTorch's statistics, counts by kind of event,
// and the options and model of synth.
func fields(v any, f func(string)) {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			f(name)
			switch name {
			case "stats", "events", "options", "model", "rounding":
			default:
				fields(x, f)
			}
		}
	case []any:
		for _, x := range v {
			fields(x, f)
		}
	}
}
