package outfile

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// text is a kind of file.
var text = Kind{Name: "a text of ours", Is: Prefix("ours")}

func content(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func put(t *testing.T, path, s string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(s), mode); err != nil {
		t.Fatal(err)
	}
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s holds %q, want %q (%v)", path, got, want, err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}

// Writing is all or nothing.
func TestWrite(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "out", "ours before", 0o640)
	f, err := New("out", text)
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	if err := f.Write(func(w io.Writer) error { io.WriteString(w, "half"); return boom }); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { recover() }()
		f.Write(func(w io.Writer) error { io.WriteString(w, "half"); panic("boom") })
	}()
	holds(t, "out", "ours before")
	if got := names(t, "."); !slices.Equal(got, []string{"out"}) {
		t.Errorf("after failures the folder holds %q", got)
	}
	if err := f.Write(content("ours after")); err != nil {
		t.Fatal(err)
	}
	holds(t, "out", "ours after")
	if st, err := os.Stat("out"); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v (%v)", st.Mode(), err)
	}
	if f, err := New("no/such", text); err != nil {
		t.Error(err)
	} else if err := f.Write(content("")); err == nil || !strings.Contains(err.Error(), "there is no folder no/") {
		t.Errorf("no folder: %v", err)
	}
}

func TestWriteThroughLink(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "out", "ours before", 0o640)
	if err := os.Symlink("out", "link"); err != nil {
		t.Skip("no symbolic links: ", err)
	}
	f, err := New("link", text)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(content("ours after")); err != nil {
		t.Fatal(err)
	}
	holds(t, "out", "ours after")
	if l, err := os.Lstat("link"); err != nil || l.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
}

func TestNewRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "in", "ours", 0o600)
	put(t, "other", "theirs", 0o600)
	put(t, "kept", "ours", 0o400)
	put(t, "empty", "", 0o600)
	for _, err := range []error{os.Mkdir("folder", 0o700), os.Link("in", "hard"), os.Symlink("in", "soft"), os.Symlink("soft", "twice"), os.Symlink("nowhere", "dangling")} {
		if err != nil {
			t.Skip("no links here: ", err)
		}
	}
	st, err := os.Stat("in")
	if err != nil {
		t.Fatal(err)
	}
	input := Source{Path: "in", What: "the input"}
	for _, c := range []struct {
		path    string
		sources []Source
		want    string
	}{
		{"in", []Source{input}, "in is the input; write to another file"},
		{"./folder/../in", []Source{{}, input}, "is the input"},
		{"hard", []Source{input}, "is the input"},
		{"soft", []Source{input}, "is the input"},
		{"twice", []Source{input}, "is the input"},
		{"in", []Source{{Path: "twice", What: "the input"}}, "is the input"},
		{"hard", []Source{{Info: st, What: "standard input"}}, "is standard input"},
		{"new", []Source{{Path: "folder/../new", What: "the report"}}, "is the report"},
		{"folder/new", []Source{{Path: "new", What: "the report"}}, ""},
		{"new", []Source{{Path: "new2", What: "the report"}, {Path: "nofolder/new"}}, ""},
		{"in", nil, ""},
		{"empty", []Source{input}, ""},
		{"other", []Source{input}, "other exists and is not a text of ours; write to another file, or remove it first"},
		{"kept", nil, "kept is write-protected"},
		{"folder", nil, "is a folder"},
		{"dangling", nil, "leads nowhere"},
		{"", nil, "is empty"},
		{"in/x", nil, "not a directory"},
	} {
		_, err := New(c.path, text, c.sources...)
		if got := ""; err != nil {
			got = err.Error()
			if c.want == "" || !strings.Contains(got, c.want) {
				t.Errorf("%q beside %+v: %s, want %q", c.path, c.sources, got, c.want)
			}
		} else if c.want != "" {
			t.Errorf("%q beside %+v: no error, want %q", c.path, c.sources, c.want)
		}
	}
}

// What has come between New and Write is spared as well.
func TestWriteChecksAgain(t *testing.T) {
	t.Chdir(t.TempDir())
	f, err := New("out", text)
	if err != nil {
		t.Fatal(err)
	}
	put(t, "out", "theirs", 0o600)
	if err := f.Write(content("ours")); err == nil {
		t.Error("no error")
	}
	holds(t, "out", "theirs")
	if err := new(File).Write(content("ours")); err == nil {
		t.Error("a File that New did not make can be written")
	}
}

// TestOnlyWay holds that nothing else in the program makes or changes files.
func TestOnlyWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "allocsim/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	changing := []string{"Create", "CreateTemp", "Link", "Mkdir", "MkdirAll", "MkdirTemp", "OpenFile", "Rename", "Symlink", "Truncate", "WriteFile"}
	// By folder and function.
	allowed := map[string]string{
		"internal/outfile OpenFile":        "this package",
		"internal/outfile Rename":          "this package",
		"traces/formats CreateTemp":        "a copy of what cannot be read at random, removed at the end",
		"validate/torchengine MkdirTemp":   "the folder of the replay's script, removed at the end",
		"validate/torchengine WriteFile":   "the script in it",
		"cmd/allocsim MkdirAll":            "the folder of the manual pages",
		"internal/bend CreateTemp":         "in the folder of a test",
		"internal/bend WriteFile":          "in the folder of a test",
		"docs/internal/tables WriteFile":   "a tool of the repository, which writes the pages it is told to",
		"docs/internal/dryrun WriteFile":   "likewise",
		"docs/internal/accuracy MkdirTemp": "likewise: recordings without their sidecars, removed at the end",
		"docs/internal/accuracy Symlink":   "in that folder",
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, dir := range strings.Fields(string(out)) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		where, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			local := "os"
			for _, i := range f.Imports {
				if p, _ := strconv.Unquote(i.Path.Value); p == "os" && i.Name != nil {
					local = i.Name.Name
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := s.X.(*ast.Ident); ok && x.Name == local && slices.Contains(changing, s.Sel.Name) {
					key := filepath.ToSlash(where) + " " + s.Sel.Name
					if allowed[key] == "" {
						t.Errorf("%s: os.%s makes or changes a file; use outfile", fset.Position(s.Pos()), s.Sel.Name)
					}
					seen[key] = true
				}
				return true
			})
		}
	}
	for key := range allowed {
		if !seen[key] {
			t.Errorf("%s is allowed but not used", key)
		}
	}
}
