package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestOldTorch: what is compared by default is what the release has.
func TestOldTorch(t *testing.T) {
	atRoot(t)
	const trace = "testdata/recordings/fuzz0063.pickle.zst"
	for version, shown := range map[string]bool{"2.0": false, "2.1": true} {
		out, errs, code := execute(t, "", "compare", trace, "--torch", version, "--json")
		if code != exitOK || strings.Contains(out, `"expandable_segments:True"`) != shown {
			t.Errorf("compare --torch %s: exit code %d, %s", version, code, errs)
		}
		if _, errs, code := execute(t, "", "plot", trace, "--torch", version, "--kind", "compare", "-o", filepath.Join(t.TempDir(), "t.svg")); code != exitOK {
			t.Errorf("plot --torch %s: exit code %d, %s", version, code, errs)
		}
	}
}
