//go:build ignore

// Tests runs all tests in the working directory and treats a skip that nobody
// expects as a failure: a test that is quietly not run holds nothing.
//
//	go run .ci/tests.go SKIPS [go test flags and packages]
//
// SKIPS lists the skips that are expected, with reasons. An entry that matches
// no test of a package that was tested is an error, too.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
)

// expected is a line of the list.
type expected struct {
	line              int
	pkg, test, reason string
	exists            bool
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

const module = "allocsim/"

func main() {
	if len(os.Args) < 3 {
		fail("usage: go run .ci/tests.go SKIPS PACKAGES")
	}
	list, err := read(os.Args[1])
	if err != nil {
		fail(err.Error())
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, os.Args[2:]...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		fail(err.Error())
	}
	if err := cmd.Start(); err != nil {
		fail(err.Error())
	}
	type test struct{ pkg, name string }
	said := make(map[test]string)
	tested := make(map[string]bool)
	var skipped int
	var bad []string
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Println(lines.Text()) // what the compiler says
			continue
		}
		t := test{strings.TrimPrefix(e.Package, module), e.Test}
		switch e.Action {
		case "build-output":
			fmt.Print(e.Output)
		case "output":
			said[t] += e.Output
		case "fail":
			if said[t] != "" {
				fmt.Print(said[t])
			}
			bad = append(bad, strings.TrimSpace(t.pkg+" "+t.name+" failed"))
		case "pass", "skip":
			if e.Test == "" {
				if e.Action == "pass" {
					fmt.Printf("ok  \t%s\t%.1fs\n", t.pkg, e.Elapsed)
					tested[t.pkg] = true
				}
				continue
			}
			known := false
			for i := range list {
				x := &list[i]
				if ok, _ := path.Match(x.test, t.name); ok && x.pkg == t.pkg {
					x.exists, known = true, true
				}
			}
			if e.Action == "skip" {
				if known {
					skipped++
				} else {
					bad = append(bad, fmt.Sprintf("%s %s was skipped: %s", t.pkg, t.name, strings.TrimSpace(said[t])))
				}
			}
		}
		if e.Action != "output" {
			delete(said, t)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err.Error())
	}
	if err := cmd.Wait(); err != nil && len(bad) == 0 {
		bad = append(bad, "go test: "+err.Error())
	}
	for _, x := range list {
		if tested[x.pkg] && !x.exists {
			bad = append(bad, fmt.Sprintf("%s:%d: %s has no test %s any more", os.Args[1], x.line, x.pkg, x.test))
		}
	}
	fmt.Printf("%d packages, %d expected skips\n", len(tested), skipped)
	if len(bad) > 0 {
		fail(strings.Join(bad, "\n"))
	}
}

// read reads the list of expected skips.
func read(name string) ([]expected, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var list []expected
	for i, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) < 3 {
			return nil, fmt.Errorf("%s:%d: want a package, a test and a reason", name, i+1)
		}
		list = append(list, expected{line: i + 1, pkg: f[0], test: f[1], reason: strings.Join(f[2:], " ")})
	}
	return list, nil
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
