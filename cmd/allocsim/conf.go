package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/text"
	"allocsim/policies/torch/conf"
)

func newConf(a *app) *cobra.Command {
	var version string
	var fix, explain, env bool
	cmd := &cobra.Command{
		Use:        "conf [STRING]",
		SuggestFor: []string{"config", "env"},
		Short:      "Check a PYTORCH_CUDA_ALLOC_CONF string",
		Long: `Checks a configuration string as strictly as it deserves: PyTorch silently
accepts some mistakes and dies of others at import. Shows where the mistake is
and how to mend it, warns of combinations that do harm, and says which PyTorch
the string needs. Exit code 1 when the string is not right; with --fix, 0 when
it could be repaired.`,
		Example: `  allocsim conf max_split_size_mb:128,garbage_collection_threshold:0.8
  allocsim conf "max_split_size_mb=512" --fix
  allocsim conf expandable_segments:True --torch 2.0
  allocsim conf --env            # what the environment really sets`,
		Args: arguments(0, 1, "one configuration string"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v := conf.Latest
			if version != "" {
				var err error
				if v, err = conf.ParseVersion(version); err != nil {
					return err
				}
			}
			written := strings.Join(args, "")
			var found *conf.Environment
			if env {
				vars := make(map[string]string)
				for _, kv := range os.Environ() {
					name, value, _ := strings.Cut(kv, "=")
					vars[name] = value
				}
				e := conf.FromEnv(vars, v, false)
				written, found = e.Value, &e
				if !a.json {
					a.showEnvironment(e)
				}
			}
			_, res := conf.Parse(written, v)
			if err := a.showConf(written, res, found, fix, explain); err != nil {
				return err
			}
			if !res.OK && !(fix && res.Fixable) {
				return errNo
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&version, "torch", "", "PyTorch `VERSION` (default "+conf.Latest.String()+")")
	f.BoolVar(&fix, "fix", false, "print the repaired string only")
	f.BoolVar(&explain, "explain", false, "say what each key does and when it hurts")
	f.BoolVar(&env, "env", false, "check what the environment variables set")
	return cmd
}

func (a *app) showEnvironment(e conf.Environment) {
	if e.Variable == "" {
		a.printf("no allocator variable is set: PyTorch's defaults hold\n")
	} else {
		a.printf("%s=%s\n", e.Variable, e.Value)
	}
	if !a.quiet {
		a.notes(e.Warnings)
	}
}

func (a *app) showConf(written string, r conf.Result, env *conf.Environment, fix, explain bool) error {
	if a.json {
		return a.printJSON(struct {
			conf.Result
			Environment *conf.Environment `json:"environment,omitempty"`
		}{r, env})
	}
	if fix {
		if r.OK {
			a.printf("%s\n", r.Normalized)
		} else if r.Fixable {
			a.printf("%s\n", r.Fixed)
		} else {
			return fmt.Errorf("%s cannot be repaired: %s", text.Quote(written, 200), r.Errors[0].Message)
		}
		return nil
	}
	for _, p := range r.Errors {
		a.printf("error: %s\n%s\n", wrap(p.Message, 72, "       "), conf.Mark(written, p))
		if p.Hint != "" {
			a.printf("  %s\n", wrap(p.Hint, 76, "  "))
		}
	}
	for _, p := range r.Warnings {
		a.printf("warning: %s\n%s\n", wrap(p.Message, 70, "         "), conf.Mark(written, p))
		if p.Hint != "" {
			a.printf("  %s\n", wrap(p.Hint, 76, "  "))
		}
	}
	switch {
	case r.OK && r.Normalized == "":
		a.printf("ok: PyTorch's defaults\n")
	case r.OK:
		a.printf("ok: %s\nneeds PyTorch %s or newer\n", r.Normalized, r.Since)
		a.printf("try it: allocsim replay job.pickle --conf '%s'\n", r.Normalized)
	case r.Fixable && r.Fixed == "":
		a.printf("repaired: leave the variable unset\n")
	case r.Fixable:
		a.printf("repaired: %s\n", r.Fixed)
	}
	if r.PyTorchError != "" {
		a.printf("%s\n", wrap("PyTorch "+r.Version+" says: "+r.PyTorchError, 80, "  "))
	}
	if explain {
		for _, e := range r.Explain() {
			a.printf("\n%s (%s, default %s, since %s)\n", a.strong(e.Key), e.Type, e.Default, e.Since)
			a.printf("  %s\n  %s\n", wrap("does:  "+e.Does, 76, "         "), wrap("hurts: "+e.Hurts, 76, "         "))
		}
	}
	a.notes(r.Notes)
	return nil
}
