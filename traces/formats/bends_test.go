package formats

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what recognises, unpacks and writes files, rule by rule.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "a sidecar with only a fraction is ignored", File: "sidecar.go", Test: "TestSidecarByOneKey",
			Old: `"device_total", "fraction", "stats"`, Bent: `"device_total", "stats"`},
		{Rule: "a sidecar with only a configuration is ignored", File: "sidecar.go", Test: "TestSidecarByOneKey",
			Old: `[]string{"conf", `, Bent: `[]string{`},
		{Rule: "any JSON object beside a snapshot is its sidecar", File: "sidecar.go", Test: "TestSidecar",
			Old: "return false\n}\n\n// snapshotOf", Bent: "return true\n}\n\n// snapshotOf"},
		{Rule: "the sidecar's name ends at the first dot", File: "sidecar.go", Test: "TestSidecar",
			Old: "strings.TrimSuffix(plain, filepath.Ext(plain))", Bent: `filepath.Join(filepath.Dir(plain), strings.Split(filepath.Base(plain), ".")[0])`},
		{Rule: "the sidecar asked for is overruled by the one beside", File: "sidecar.go", Test: "TestSidecarOverruled",
			Old: "path := s.opts.Sidecar", Bent: "path := s.opts.Sidecar\nif Sidecar(s.path) != \"\" {\npath = Sidecar(s.path)\n}"},
		{Rule: "a packed snapshot has no sidecar", File: "formats.go", Test: "TestSidecar",
			Old: `".gz", ".zst", ".zstd", ".bz2"} {`, Bent: `".gz", ".zstd", ".bz2"} {`},
		{Rule: "bzip2 is not unpacked", File: "formats.go", Test: "TestBzip2",
			Old: `[]byte("BZh")`, Bent: `[]byte("BZ0")`},
		{Rule: "gzip is not unpacked", File: "formats.go", Test: "TestPacked",
			Old: "case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):", Bent: "case bytes.HasPrefix(head, []byte{0x1f, 0x8c}):"},
		{Rule: "a copy of an unpacked file stays in the temporary folder", File: "formats.go", Test: "TestNothingIsLeftBehind",
			Old: "os.Remove(f.Name())", Bent: "_ = f"},
		{Rule: "a file may unpack to 100,000 times its size", File: "formats.go", Test: "TestUnpackedSizeIsBounded",
			Old: "n > maxUnpacked && n > maxRatio*s.raw.n", Bent: "n > maxUnpacked && n > 1000*maxRatio*s.raw.n"},
		{Rule: "a small file that packs well is refused", File: "formats.go", Test: "TestUnpackedSizeIsBounded",
			Old: "n > maxUnpacked && n > maxRatio*s.raw.n", Bent: "n > maxRatio*s.raw.n"},
		{Rule: "the clock of a trace without one starts at 0", File: "../native/native.go", Test: "TestClock",
			Old: "cmp.Or(m.meta.ClockUS, t.StartUS)", Bent: "cmp.Or(m.meta.ClockUS)"},
		{Rule: "progress ends before the end", File: "formats.go", Test: "TestProgress",
			Old: "p.report(max(p.done, p.total), p.total)", Bent: "p.report(p.told, p.total)"},
		{Rule: "our own counter tracks pass for a profiler trace", File: "formats.go", Test: "TestMessages",
			Old: "if perfetto.Detect(head) {\n\t\treturn nil,", Bent: "if false {\n\t\treturn nil,"},
		{Rule: "a CSV with two columns missing is nearly right", File: "formats.go", Test: "TestMessages",
			Old: "len(missing) > 1", Bent: "len(missing) > 2"},
		{Rule: "a packed file that is cut short is not called so", File: "formats.go", Test: "TestMessages",
			Old: `s.packed != "" && errors.Is(err, io.ErrUnexpectedEOF)`, Bent: `s.packed == "" && errors.Is(err, io.ErrUnexpectedEOF)`},
		{Rule: "minimalloc's ending is taken for the native one", File: "write.go", Test: "TestEndings",
			Old: "strings.HasSuffix(plain, writers[i].ending)", Bent: "strings.HasSuffix(plain, writers[len(writers)-1-i].ending)"},
		{Rule: "endings in capitals are unknown", File: "write.go", Test: "TestEndings",
			Old: "strings.ToLower(PlainName(path))", Bent: "PlainName(path)"},
		{Rule: "any Parquet table is a trace", File: "formats.go", Test: "TestWriteSpares",
			Old: "how == \"\" && !namesColumns(f)", Bent: "how == \"-\""},
		{Rule: "a packed trace is not known again", File: "formats.go", Test: "TestWrite",
			Old: "defer end()\n", Bent: "defer end()\nif how != \"\" {\nreturn \"\"\n}\n"},
		{Rule: "any trace is of the kind that is written", File: "write.go", Test: "TestWriteSpares",
			Old: "return formatOf(f) == w.name", Bent: "return formatOf(f) != \"\""},
		{Rule: "what the format cannot carry is not said", File: "write.go", Test: "TestWrite",
			Old: "return w.losses(t), nil", Bent: "return nil, nil"},
	})
}
