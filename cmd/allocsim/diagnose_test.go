package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestDiagnosisFits demands that what diagnose prints of every message of its
// corpus fits 80 columns, but for the commands that are for copying.
func TestDiagnosisFits(t *testing.T) {
	atRoot(t)
	files, err := filepath.Glob("planner/diagnose/testdata/messages/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no messages: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(strings.TrimSuffix(string(data), "====\n"), "====\n") {
			_, text, _ := strings.Cut(part, "\nwant ")
			_, text, _ = strings.Cut(text, "\n")
			out, errs, code := execute(t, text, "diagnose")
			if code != 0 {
				t.Errorf("%s: exit code %d: %s\n%s", file, code, errs, text)
			}
			shown, _, _ := strings.Cut(out, "\nnext:\n")
			for _, line := range strings.Split(shown+"\n"+errs, "\n") {
				if utf8.RuneCountInString(line) > 80 {
					t.Errorf("%s: %d columns: %s", file, utf8.RuneCountInString(line), line)
				}
			}
		}
	}
}
