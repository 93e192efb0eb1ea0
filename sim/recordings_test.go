package sim_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/traces/snapshot"
)

// load reads a recording with its sidecar.
func load(t testing.TB, path string) *traces.Trace {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	sidecar, err := os.ReadFile(strings.TrimSuffix(path, ".pickle.zst") + ".json")
	if err != nil {
		sidecar = nil
	}
	var sc *snapshot.Sidecar
	if sidecar != nil {
		if sc, err = snapshot.ParseSidecar(sidecar); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := snapshot.Read(context.Background(), z, snapshot.Options{Source: filepath.Base(path), Sidecar: sc})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := rec.Device(-1)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

var _ = bytes.NewReader

func TestAllRecordings(t *testing.T) {
	var files []string
	for _, dir := range []string{"fuzz", "workloads", "scale", "leak", "ring"} {
		m, _ := filepath.Glob("../../shared/recordings/" + dir + "/*.pickle.zst")
		files = append(files, m...)
	}
	if len(files) == 0 {
		t.Skip("the recordings folder is not beside this checkout")
	}
	for _, f := range files {
		t.Run(filepath.Base(filepath.Dir(f))+"/"+strings.TrimSuffix(filepath.Base(f), ".pickle.zst"), func(t *testing.T) {
			res, err := sim.Check(context.Background(), load(t, f), sim.RecoverOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !res.Exact {
				t.Errorf("not exact: %+v\n%+v", *res, res.FirstDivergence)
			}
		})
	}
}
