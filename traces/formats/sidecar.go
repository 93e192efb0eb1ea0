package formats

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"allocsim/traces/snapshot"
)

// maxSidecar bounds a sidecar in bytes; real ones are a few KiB.
const maxSidecar = 64 << 20

// sidecar reads the sidecar of the snapshot: the one asked for, or the JSON
// file beside it, if there is one and it looks like a sidecar.
func (s *source) sidecar() (*snapshot.Sidecar, error) {
	path := s.opts.Sidecar
	if path != "" {
		data, err := readSmall(path)
		if err != nil {
			return nil, fmt.Errorf("sidecar: %w", openError(path, err))
		}
		if !isSidecar(data) {
			return nil, fmt.Errorf("%s is not a sidecar: it is not a JSON object with conf, fraction, device_total or stats", path)
		}
		side, err := snapshot.ParseSidecar(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return side, nil
	}
	path = sidecarPath(s.path)
	if path == "" {
		return nil, nil
	}
	data, err := readSmall(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !isSidecar(data) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sidecar: %w", err)
	}
	side, err := snapshot.ParseSidecar(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return side, nil
}

// sidecarPath is the sidecar's name for a snapshot: NAME.json beside
// NAME.pickle, however packed. Empty for standard input.
func sidecarPath(path string) string {
	if path == "-" {
		return ""
	}
	plain := PlainName(path)
	if side := strings.TrimSuffix(plain, filepath.Ext(plain)) + ".json"; side != path && side != plain {
		return side
	}
	return ""
}

// Sidecar is the path of the sidecar that [Open] would find beside the trace at
// path; empty if there is none.
func Sidecar(path string) string {
	side := sidecarPath(path)
	if side == "" {
		return ""
	}
	if data, err := readSmall(side); err != nil || !isSidecar(data) {
		return ""
	}
	return side
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSidecar+1))
	if err == nil && len(data) > maxSidecar {
		return nil, fmt.Errorf("%s is larger than %d MiB; a sidecar is a few KiB", path, maxSidecar>>20)
	}
	return data, err
}

// isSidecar reports whether data is an object with at least one of the keys
// that only sidecars have.
func isSidecar(data []byte) bool {
	var keys map[string]json.RawMessage
	if json.Unmarshal(data, &keys) != nil {
		return false
	}
	for _, k := range []string{"conf", "device_total", "fraction", "stats"} {
		if _, ok := keys[k]; ok {
			return true
		}
	}
	return false
}

// snapshotOf finds the snapshot beside a sidecar, for a hint; empty if there
// is none.
func snapshotOf(path string) string {
	base := strings.TrimSuffix(path, ".json")
	for _, e := range []string{".pickle", ".pickle.zst", ".pickle.gz", ".pkl", ".pkl.zst", ".pkl.gz"} {
		if _, err := os.Stat(base + e); err == nil {
			return base + e
		}
	}
	return ""
}
