package formats

import (
	"context"

	"allocsim/traces"
	"allocsim/traces/dryrun"
	"allocsim/traces/kineto"
	"allocsim/traces/minimalloc"
	"allocsim/traces/native"
	"allocsim/traces/nsys"
	"allocsim/traces/perfetto"
	"allocsim/traces/rmmlog"
	"allocsim/traces/snapshot"
)

// readers are tried in order; what is told by a signature comes before what is
// told by words.
var readers = []reader{
	{
		Format: Format{native.FormatParquet, "native Parquet", []string{".parquet"}, true, true},
		detect: native.DetectParquet,
		read: func(ctx context.Context, s *source) (*traces.Recording, error) {
			f, size, err := s.random()
			if err != nil {
				return nil, err
			}
			return native.ReadParquet(ctx, f, size, s.name)
		},
	},
	{
		Format: Format{snapshot.Format, "PyTorch memory snapshot", []string{".pickle", ".pkl"}, true, false},
		detect: snapshot.Detect,
		read: func(ctx context.Context, s *source) (*traces.Recording, error) {
			side, err := s.sidecar()
			if err != nil {
				return nil, err
			}
			// The name is in our own messages already.
			rec, err := snapshot.Read(ctx, s.r, snapshot.Options{Sidecar: side})
			if err != nil {
				return nil, err
			}
			for _, t := range rec.Devices {
				t.Source = s.name
			}
			return rec, nil
		},
	},
	{
		Format: Format{dryrun.Format, "dry run", []string{".dryrun"}, true, false},
		detect: dryrun.Detect,
		read: func(ctx context.Context, s *source) (*traces.Recording, error) {
			return dryrun.Read(ctx, s.r, s.name)
		},
	},
	{
		Format: Format{nsys.Format, "Nsight Systems SQLite export", []string{".sqlite"}, true, false},
		detect: nsys.Detect,
		read: func(ctx context.Context, s *source) (*traces.Recording, error) {
			f, _, err := s.random()
			if err != nil {
				return nil, err
			}
			return nsys.Read(ctx, f.Name(), s.name)
		},
	},
	{
		Format: Format{kineto.Format, "PyTorch profiler trace", []string{".json"}, true, false},
		detect: kineto.Detect,
		read: func(ctx context.Context, s *source) (*traces.Recording, error) {
			return kineto.Read(ctx, s.r, s.name)
		},
	},
	{
		Format: Format{rmmlog.Format, "RMM log", []string{".csv", ".txt", ".log"}, true, false},
		detect: rmmlog.Detect,
		read: func(ctx context.Context, s *source) (*traces.Recording, error) {
			return rmmlog.Read(ctx, s.r, s.name)
		},
	},
	{
		Format: Format{minimalloc.Format, "minimalloc CSV", []string{".minimalloc.csv", ".csv"}, true, true},
		detect: minimalloc.Detect,
		read: func(ctx context.Context, s *source) (*traces.Recording, error) {
			return minimalloc.Read(ctx, s.r, s.name)
		},
	},
	{
		Format: Format{native.FormatCSV, "native CSV", []string{".csv"}, true, true},
		detect: native.DetectCSV,
		read: func(ctx context.Context, s *source) (*traces.Recording, error) {
			return native.ReadCSV(ctx, s.r, s.name)
		},
	},
}

// writeOnly are formats that nobody can read back.
var writeOnly = []Format{
	{perfetto.Format, "Perfetto counter tracks", []string{".json"}, false, true},
}

// writers are told by the ending; a longer one comes before what it ends in.
var writers = []writer{
	{native.FormatParquet, ".parquet", native.WriteParquet, native.Losses},
	{perfetto.Format, ".json", perfetto.WriteTrace, perfetto.Losses},
	{minimalloc.Format, ".minimalloc.csv", minimalloc.Write, minimalloc.Losses},
	{native.FormatCSV, ".csv", native.WriteCSV, native.Losses},
}
