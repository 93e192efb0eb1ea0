package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

// execute runs the program in the repository's root and returns what it
// printed and its exit code.
func execute(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(stdin), &out, &errs)
	return out.String(), errs.String(), code
}

// atRoot makes the repository's root the working directory, so that the paths
// in transcripts and documents are those that a user types.
func atRoot(t *testing.T) {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(here, "..", ".."))
}

// argumentsOf splits a command line as a shell does, with single and double quotes.
func argumentsOf(line string) []string {
	var out []string
	var word strings.Builder
	quote, open := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, open = r, true
		case quote == 0 && r == ' ':
			if open || word.Len() > 0 {
				out = append(out, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
		}
	}
	if open || word.Len() > 0 {
		out = append(out, word.String())
	}
	return out
}

var elapsed = regexp.MustCompile(`(simulated in )[0-9.]+ s|("elapsed_ms": )[0-9]+`)

// stable replaces what differs from run to run.
func stable(s string) string { return elapsed.ReplaceAllString(s, "${1}${2}N") }

// TestTranscripts runs testdata/*.txt. The command is a line of arguments
// ("allocsim" itself first, as typed); input is standard input; printed are
// standard output, standard error and the exit code. {TMP} is a scratch
// folder, shared within a file.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for i := range files {
		if files[i], err = filepath.Abs(files[i]); err != nil {
			t.Fatal(err)
		}
	}
	atRoot(t)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			tmp := t.TempDir()
			datadriven.RunTest(t, f, func(t *testing.T, d *datadriven.TestData) string {
				input := strings.ReplaceAll(d.Input, "{TMP}", tmp)
				line, stdin, _ := strings.Cut(input, "\n")
				switch d.Cmd {
				case "run":
					args := argumentsOf(strings.TrimPrefix(line, "allocsim "))
					if line == "allocsim" {
						args = nil
					}
					out, errs, code := execute(t, stdin, args...)
					s := strings.ReplaceAll(stable(out+errs), tmp, "{TMP}")
					if code != 0 {
						s += fmt.Sprintf("[exit code %d]\n", code)
					}
					return s
				case "file":
					// The first line is the name, the rest the content.
					if err := os.WriteFile(line, []byte(stdin+"\n"), 0o644); err != nil {
						t.Fatal(err)
					}
					return ""
				}
				t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
				return ""
			})
		})
	}
}

var rewriteDocs = flag.Bool("rewrite-docs", false, "put the real output into the documents")

// TestDocuments runs every command that README.md and docs/*.md show in a
// ```console block ("$ allocsim …") and compares the output with what they
// show. An output line "…" stands for lines left out up to the end.
func TestDocuments(t *testing.T) {
	atRoot(t)
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range append([]string{"README.md"}, docs...) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		shown := string(text)
		real := consoleBlocks(t, shown)
		if *rewriteDocs && real != shown {
			if err := os.WriteFile(doc, []byte(real), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(stable(shown), stable(real)); diff != "" {
			t.Errorf("%s shows output that the program does not print (-shown +real); go test ./cmd/allocsim -run TestDocuments -rewrite-docs mends it:\n%s", doc, diff)
		}
	}
}

// consoleBlocks returns the document with the real output in its console
// blocks.
func consoleBlocks(t *testing.T, text string) string {
	var out []string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		out = append(out, lines[i])
		if lines[i] != "```console" {
			continue
		}
		var dir string
		for i++; i < len(lines) && lines[i] != "```"; {
			command, ok := strings.CutPrefix(lines[i], "$ allocsim")
			if !ok {
				t.Fatalf("a console block starts with %q, not with \"$ allocsim …\"", lines[i])
			}
			out = append(out, lines[i])
			if dir == "" {
				dir = t.TempDir()
			}
			stdout, stderr, _ := execute(t, "", argumentsOf(strings.ReplaceAll(strings.TrimSpace(command), "/tmp/", dir+"/"))...)
			got := strings.Split(strings.TrimRight(strings.ReplaceAll(stdout+stderr, dir+"/", "/tmp/"), "\n"), "\n")
			n := 0
			for i++; i < len(lines) && lines[i] != "```" && !strings.HasPrefix(lines[i], "$ "); i++ {
				if lines[i] == "…" {
					got = append(got[:min(n, len(got))], "…")
				}
				n++
			}
			out = append(out, got...)
		}
		out = append(out, "```")
	}
	return strings.Join(out, "\n")
}
