package bend

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// variable names the environment variable that holds the number of the bend
// in force, counted from 1.
const variable = "ALLOCSIM_BEND"

// switchFile is the file that an overlay adds to each bent package.
const switchFile = "zz_bend_switch.go"

// switchSource declares what bent functions and variables ask.
const switchSource = `package %s

import (
	"os"
	"strconv"
)

var bendActive, _ = strconv.Atoi(os.Getenv("` + variable + `"))

func bendPick[T any](straight T, n int, bent T) T {
	if bendActive == n {
		return bent
	}
	return straight
}
`

// A place is where in its file a bend applies.
type place struct {
	path   string // absolute
	offset int    // of Old
	fn     *ast.FuncDecl
	value  ast.Expr // the value of a package variable, when fn is nil
}

// shared reports whether the bend can live in one binary with others.
func (p *place) shared() bool { return p.fn != nil || p.value != nil }

// A source is one parsed file.
type source struct {
	path string
	text []byte
	fset *token.FileSet
	file *ast.File
}

func readSource(path string) (*source, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the file to bend: %w", err)
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parsing the file to bend: %w", err)
	}
	return &source{path, text, fset, file}, nil
}

// span is the offsets of a node, first to past its last byte.
func (s *source) span(n ast.Node) (int, int) {
	return s.fset.Position(n.Pos()).Offset, s.fset.Position(n.End()).Offset
}

// find says where b applies.
func (s *source) find(b Bend) (*place, error) {
	switch {
	case b.Old == "" || b.Old == b.Bent:
		return nil, fmt.Errorf("%s: a bend needs a text and another one in its place", b.File)
	case b.Test == "":
		return nil, fmt.Errorf("%s: no test is named that must fail", b.File)
	}
	switch n := bytes.Count(s.text, []byte(b.Old)); {
	case n == 0:
		return nil, fmt.Errorf("%s does not hold %q: the code has moved, so put the rule's new text there; drop the bend only if the rule is gone", b.File, b.Old)
	case n > 1:
		return nil, fmt.Errorf("%s holds %q %d times: add text around it until one place is meant", b.File, b.Old, n)
	}
	p := &place{path: s.path, offset: bytes.Index(s.text, []byte(b.Old))}
	within := func(n ast.Node) bool {
		from, to := s.span(n)
		return from <= p.offset && p.offset+len(b.Old) <= to
	}
	for _, decl := range s.file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Body != nil && within(d.Body) {
				p.fn = d
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR && len(v.Names) == 1 && len(v.Values) == 1 && within(v.Values[0]) {
					p.value = v.Values[0]
				}
			}
		}
	}
	return p, nil
}

// An edit replaces text[from:to].
type edit struct {
	from, to int
	text     string
}

func (s *source) apply(edits []edit) string {
	sort.SliceStable(edits, func(i, j int) bool { return edits[i].from < edits[j].from })
	var out strings.Builder
	at := 0
	for _, e := range edits {
		out.Write(s.text[at:e.from])
		out.WriteString(e.text)
		at = e.to
	}
	out.Write(s.text[at:])
	return out.String()
}

// at is a line directive: what follows it counts as the text at offset, in a
// file of that name. Failures and stacks then show where the rule stands, and
// the compiler's errors name the bend.
func (s *source) at(offset int, name string) string {
	p := s.fset.PositionFor(s.file.FileStart+token.Pos(offset), false)
	return fmt.Sprintf("/*line %s:%d:%d*/", name, p.Line, p.Column)
}

// bentName is the file name that the text of bend i, from 0, has for the compiler.
func bentName(i int) string { return fmt.Sprintf("bend%d.go", i+1) }

// schema is the file with all of the numbered bends in it, each behind its
// switch.
func (s *source) schema(bends []Bend, places []*place, numbers []int) string {
	inside := make(map[ast.Node][]int)
	var nodes []ast.Node // in order, so that the text is always the same
	for _, i := range numbers {
		var n ast.Node = places[i].fn
		if places[i].fn == nil {
			n = places[i].value
		}
		if inside[n] == nil {
			nodes = append(nodes, n)
		}
		inside[n] = append(inside[n], i)
	}
	var edits []edit
	for _, n := range nodes {
		if fn, ok := n.(*ast.FuncDecl); ok {
			edits = append(edits, s.bentBodies(fn, inside[n], bends, places))
		} else {
			edits = append(edits, s.bentValues(n.(ast.Expr), inside[n], bends, places)...)
		}
	}
	return s.apply(edits)
}

// bentBodies puts the bodies of the bends before the function's own.
func (s *source) bentBodies(fn *ast.FuncDecl, numbers []int, bends []Bend, places []*place) edit {
	open, end := s.span(fn.Body)
	hasLabel := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		_, label := n.(*ast.LabeledStmt)
		hasLabel = hasLabel || label
		return true
	})
	var out strings.Builder
	for _, i := range numbers {
		b, at := bends[i], places[i].offset
		body := s.at(open+1, bentName(i)) + string(s.text[open+1:at]) + b.Bent + string(s.text[at+len(b.Old):end-1])
		if fn.Type.Results == nil {
			body += "\nreturn"
		}
		if hasLabel { // a label is unique in its function, but a function literal has its own
			call := "func()"
			if r := fn.Type.Results; r != nil {
				from, to := s.span(r)
				call = "return func() " + string(s.text[from:to])
			}
			body = call + " {" + body + "\n}()"
			if fn.Type.Results == nil {
				body += "\nreturn"
			}
		}
		fmt.Fprintf(&out, "\nif bendActive == %d {%s\n}\n", i+1, body)
	}
	return edit{open + 1, open + 1, out.String() + s.at(open+1, filepath.Base(s.path))}
}

// bentValues puts the value of a variable beside those of the bends.
func (s *source) bentValues(value ast.Expr, numbers []int, bends []Bend, places []*place) []edit {
	from, to := s.span(value)
	after := ""
	for _, i := range numbers {
		b, at := bends[i], places[i].offset
		after += fmt.Sprintf(", %d, %s%s%s%s)", i+1, s.at(from, bentName(i)), s.text[from:at], b.Bent, s.text[at+len(b.Old):to])
	}
	return []edit{
		{from, from, strings.Repeat("bendPick(", len(numbers)) + s.at(from, filepath.Base(s.path))},
		{to, to, after + s.at(to, filepath.Base(s.path))},
	}
}

// plain is the file with one bend in it and no switch.
func (s *source) plain(b Bend, p *place) string {
	return s.apply([]edit{{p.offset, p.offset + len(b.Old), b.Bent}})
}

// overlay is the files that the compiler reads in place of the tree's, by
// path, with the numbered bends behind switches.
func overlay(sources map[string]*source, bends []Bend, places []*place, numbers []int) map[string]string {
	byFile := make(map[string][]int)
	for _, i := range numbers {
		byFile[places[i].path] = append(byFile[places[i].path], i)
	}
	files := make(map[string]string)
	for path, inFile := range byFile {
		slices.Sort(inFile)
		s := sources[path]
		files[path] = s.schema(bends, places, inFile)
		files[filepath.Join(filepath.Dir(path), switchFile)] = fmt.Sprintf(switchSource, s.file.Name.Name)
	}
	return files
}
