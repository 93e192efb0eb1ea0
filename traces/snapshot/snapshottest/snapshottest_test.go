package snapshottest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	_ "allocsim/policies/all"
	"allocsim/sim/recovery"
	"allocsim/traces/formats/formatstest"
	"allocsim/traces/snapshot/snapshottest"
)

// TestCut writes a whole recording back: read again, every address must follow
// from its requests as before.
func TestCut(t *testing.T) {
	for _, name := range []string{"gnn__default", "gnn__exp", "gnn__tight", "fuzz0003", "resnet50_amp__default"} {
		tr := formatstest.Load(t, "../../../testdata/recordings/"+name+".pickle.zst")
		whole, n := snapshottest.Cut(tr, -1)
		half, _ := snapshottest.Cut(tr, n/2)
		for what, b := range map[string][]byte{"whole": whole, "half": half} {
			path := filepath.Join(t.TempDir(), "x.pickle")
			sidecar, err := os.ReadFile("../../../testdata/recordings/" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			for p, b := range map[string][]byte{path: b, path[:len(path)-len(".pickle")] + ".json": sidecar} {
				if err := os.WriteFile(p, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			res, err := recovery.Check(context.Background(), formatstest.Load(t, path), recovery.Options{})
			if err != nil {
				t.Fatalf("%s, %s: %v", name, what, err)
			}
			if res.FirstDivergence != nil {
				t.Errorf("%s, %s: %+v", name, what, *res.FirstDivergence)
			}
		}
	}
}
