package bend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A work is the compiled test binaries of one list of bends.
type work struct {
	dir     string        // the folder of the tests
	timeout time.Duration // for one run
	common  string        // the binary with the switches
	own     []string      // by bend: its own binary, or empty
	errors  []error       // by bend: why it cannot be run
	rapid   []string      // flags for pgregory.net/rapid, if the tests use it
}

// build compiles the tests of the package in dir, once for all bends that can
// share a binary and once for each of the others, into temp.
func build(dir, temp string, bends []Bend) (*work, error) {
	w := &work{
		dir: dir,
		// A bent loop may never end; no test that belongs in a list of bends
		// runs nearly as long.
		timeout: 2 * time.Minute,
		own:     make([]string, len(bends)),
		errors:  make([]error, len(bends)),
	}
	sources := make(map[string]*source)
	places := make([]*place, len(bends))
	var shared []int
	for i, b := range bends {
		path := filepath.Join(dir, b.File)
		if sources[path] == nil {
			s, err := readSource(path)
			if err != nil {
				return nil, err
			}
			sources[path] = s
		}
		places[i], w.errors[i] = sources[path].find(b)
		if w.errors[i] == nil && places[i].shared() {
			shared = append(shared, i)
		}
	}
	list := exec.Command("go", "list", "-deps", "-test", ".")
	list.Dir = dir
	deps, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing what the tests import: %w", err)
	}
	if slices.Contains(strings.Fields(string(deps)), "pgregory.net/rapid") {
		// The same worlds in every run, and no reports of failures in the tree.
		w.rapid = []string{"-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=1s"}
	}
	w.common = filepath.Join(temp, "bent.test")
	// A bend that does not compile is taken out, so that the others still run.
	for {
		out, err := compile(dir, temp, w.common, overlay(sources, bends, places, shared))
		if err == nil {
			break
		}
		broken := blamed(out, len(bends))
		if len(broken) == 0 {
			return nil, fmt.Errorf("compiling the tests with the bends: %w\n%s", err, out)
		}
		for i, line := range broken {
			w.errors[i] = fmt.Errorf("%s: %q does not compile there: %s", bends[i].File, oneLine(bends[i].Bent), line)
		}
		shared = slices.DeleteFunc(shared, func(i int) bool { return broken[i] != "" })
	}
	for i, b := range bends {
		if w.errors[i] != nil || places[i].shared() {
			continue
		}
		w.own[i] = filepath.Join(temp, "bent"+strconv.Itoa(i+1)+".test")
		files := map[string]string{places[i].path: sources[places[i].path].plain(b, places[i])}
		if out, err := compile(dir, temp, w.own[i], files); err != nil {
			w.errors[i] = fmt.Errorf("%s: %q does not compile there: %s", b.File, oneLine(b.Bent), out)
		}
	}
	return w, nil
}

var bentPosition = regexp.MustCompile(`(?m)^.*\bbend(\d+)\.go:(\d+.*)$`)

// blamed reads from the compiler's errors which bends they are in, by number
// from 0, with the first error of each.
func blamed(out string, bends int) map[int]string {
	broken := make(map[int]string)
	for _, m := range bentPosition.FindAllStringSubmatch(out, -1) {
		if n, err := strconv.Atoi(m[1]); err == nil && 1 <= n && n <= bends && broken[n-1] == "" {
			broken[n-1] = "line " + m[2]
		}
	}
	return broken
}

// compile builds the tests of the package in dir as binary, with files in
// place of the tree's, and returns what the compiler said.
func compile(dir, temp, binary string, files map[string]string) (string, error) {
	replace := make(map[string]string)
	for path, text := range files {
		f, err := os.CreateTemp(temp, "*.go")
		if err != nil {
			return "", err
		}
		_, err = f.WriteString(text)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
		replace[path] = f.Name()
	}
	document, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlayFile := filepath.Join(temp, "overlay.json")
	if err := os.WriteFile(overlayFile, document, 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "test", "-c", "-overlay", overlayFile, "-o", binary, ".")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// exec runs the tests that pattern names with bend n in force, counted from
// 1; 0 is none.
func (w *work) exec(binary, pattern string, n int) (string, error) {
	parts := strings.Split(pattern, "/")
	for i, p := range parts {
		parts[i] = "^(" + p + ")$"
	}
	args := []string{"-test.run=" + strings.Join(parts, "/"), "-test.failfast", "-test.timeout=" + w.timeout.String()}
	args = append(args, w.rapid...)
	ctx, cancel := context.WithTimeout(context.Background(), w.timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = w.dir
	cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// straight runs the tests with nothing bent: they must pass, and be there.
func (w *work) straight(pattern string) error {
	switch out, err := w.exec(w.common, pattern, 0); {
	case err != nil:
		return fmt.Errorf("%s fails although nothing is bent:\n%s", pattern, tail(out))
	case strings.Contains(out, "no tests to run"):
		return fmt.Errorf("there is no test %s", pattern)
	}
	return nil
}

// bent runs the test of bend i: it must fail, and by a failed check.
func (w *work) bent(i int, b Bend) error {
	binary, n := w.common, i+1
	if w.own[i] != "" {
		binary, n = w.own[i], 0
	}
	out, err := w.exec(binary, b.Test, n)
	switch {
	case err == nil:
		return fmt.Errorf("survives: %s passes", b.Test)
	case strings.Contains(out, "panic: test timed out"), err.Error() == "signal: killed":
		return fmt.Errorf("%s does not end", b.Test)
	case strings.Contains(out, "panic: ") && !strings.HasPrefix(b.Want, "panic:"):
		return fmt.Errorf("%s panics; a panic tells a reader less than a failed check, so check the rule, or want \"panic:\":\n%s", b.Test, tail(out))
	case !strings.Contains(out, "--- FAIL: "):
		return fmt.Errorf("%s does not run: %w\n%s", b.Test, err, tail(out))
	case !strings.Contains(out, b.Want):
		return fmt.Errorf("%s fails for another reason than %q:\n%s", b.Test, b.Want, tail(out))
	}
	return nil
}

// tail is the end of an output, enough to see what happened.
func tail(out string) string {
	const most = 4000
	if len(out) <= most {
		return out
	}
	return "..." + out[len(out)-most:]
}
