package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// commandLines are the command lines of every command and help topic.
func commandLines(t *testing.T) [][]string {
	t.Helper()
	var lines [][]string
	root := newRoot(nil, nil, nil)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		lines = append(lines, []string{"help", c.Name()})
	}
	return append(lines, []string{"--help"}, []string{"synth", "--list"})
}

// TestHelpFits holds every help text against the width of a terminal.
func TestHelpFits(t *testing.T) {
	for _, args := range commandLines(t) {
		// How a shell loads a completion script is cobra's text.
		if args[len(args)-1] == "completion" {
			continue
		}
		out, errs, code := execute(t, "", args...)
		if code != 0 || out == "" {
			t.Errorf("allocsim %s: exit code %d, %q", strings.Join(args, " "), code, errs)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
				t.Errorf("allocsim %s: %d columns: %s", strings.Join(args, " "), n, line)
			}
		}
	}
}

// TestFlagsSayWhatTheyTake finds flags that show a Go type in place of what
// they take.
func TestFlagsSayWhatTheyTake(t *testing.T) {
	for _, args := range commandLines(t) {
		if args[len(args)-1] == "synth" { // its values are listed in the text
			continue
		}
		out, _, _ := execute(t, "", args...)
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) > 1 && strings.HasPrefix(f[len(f)-1], "--") {
				continue
			}
			for i, w := range f {
				if strings.HasPrefix(w, "--") && i+1 < len(f) && i < 2 {
					switch f[i+1] {
					case "string", "stringArray", "strings", "float", "int":
						t.Errorf("allocsim %s: %s", strings.Join(args, " "), strings.TrimSpace(line))
					}
				}
			}
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		out, errs, code := execute(t, "", "completion", shell)
		if code != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("completion %s: exit code %d, %d bytes, %s", shell, code, len(out), errs)
		}
	}
	for _, c := range []struct {
		args string // the last word is what has been typed
		want string // one of the offers
	}{
		{"replay x --gpu rtx", "rtx-4090"},
		{"replay x --gpu RTX", "RTX-4090"},
		{"plan x --gpu h100:", "h100:1g.10gb"},
		{"synth x --gpu r", "rtx4090"},
		{"compare x --policy b", "bfc"},
		{"tune x --conf expandable_segments:True,", "expandable_segments:True,roundup_power2_divisions:"},
		{"tune x --torch 2", "2.6"},
		{"replay x --fail-on o", "ooms"},
		{"synth ll", "llama-7b"},
		{"synth x --optimizer a", "adam8bit"},
		{"validate x --engine t", "torch"},
		{"plan x --ca", "--catalogue"},
		{"rep", "replay"},
	} {
		out, _, _ := execute(t, "", append([]string{"__complete"}, strings.Split(c.args, " ")...)...)
		found := false
		for line := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			found = found || word == c.want
		}
		if !found {
			t.Errorf("allocsim %s<TAB> does not offer %s:\n%s", c.args, c.want, out)
		}
	}
	// Every card that is offered is a card that is taken.
	e := &environment{}
	offers, _ := completeCard(&cobra.Command{}, nil, "")
	for _, name := range offers {
		e.gpu = name
		if _, err := e.card(); err != nil {
			t.Errorf("--gpu %s is offered but not taken: %v", name, err)
		}
	}
}

func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if _, errs, code := execute(t, "", "man", dir); code != 0 {
		t.Fatal(errs)
	}
	for _, name := range []string{"allocsim.1", "allocsim-tune.1", "allocsim-validate.1"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), ".SH NAME") {
			t.Errorf("%s is no manual page: %v", name, err)
		}
	}
}

// TestNoColour runs commands without a terminal: no escape sequence.
func TestNoColour(t *testing.T) {
	atRoot(t)
	for _, args := range [][]string{
		{"tune", "testdata/recordings/fuzz0015.pickle.zst"},
		{"plan", "testdata/recordings/fuzz0015.pickle.zst"},
		{"inspect", "testdata/recordings/fuzz0015.pickle.zst", "--top", "--leaks"},
		{"conf", "max_split_size_mb=1", "--explain"},
		{"--help"},
	} {
		out, errs, _ := execute(t, "", args...)
		if strings.Contains(out+errs, "\x1b[") {
			t.Errorf("allocsim %s prints colours into a pipe", strings.Join(args, " "))
		}
	}
}

// TestPlace keeps the telling part of a name: the end of a path, the beginning
// of a description.
func TestPlace(t *testing.T) {
	for where, want := range map[string]string{
		"/home/ann/project/models/encoder.py:244 (forward)": "…/encoder.py:244 (forward)",
		"requests of 256 MiB to 512 MiB without a site":     "requests of 256 MiB to 512 M…",
		"short.py:1 (f)": "short.py:1 (f)",
	} {
		if got := place(where, 29); got != want {
			t.Errorf("place(%q) = %q, want %q", where, got, want)
		}
	}
}
