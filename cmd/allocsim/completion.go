package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/plots"
	"allocsim/policies"
	"allocsim/policies/torch/conf"
	"allocsim/traces/synth"
)

// completions are the values that a shell offers for flags, by the flag's
// name; every command with such a flag gets them.
var completions = map[string]cobra.CompletionFunc{
	"gpu":     completeCard,
	"policy":  completePolicy,
	"conf":    completeConf,
	"torch":   fixed(torchVersions),
	"fail-on": completeAlert,
	"vary":    values("batch", "seq"),
	"engine":  values("torch", "cuda", "sim"),
	"kind":    fixed(plots.Kinds),
	"x":       values("time", "events"),

	"precision":  values("fp32", "fp16-amp", "bf16-amp", "bf16", "fp16", "int8"),
	"optimizer":  values("sgd", "adam", "adamw", "adafactor", "adam8bit"),
	"checkpoint": values("none", "block", "sqrt"),
	"zero":       values("0", "1", "2", "3"),
	"padding":    values("max", "longest"),
	"kv-cache":   values("contiguous", "paged"),
	"fault":      values("keep-outputs", "keep-graph", "new-optimizer", "leak-optimizer"),
}

// synthCards are the cards whose library workspaces are known.
var synthCards = []string{"h200", "h100", "a100", "l40s", "rtx4090", "t4", "v100"}

// addCompletions gives the flags of all commands their values.
func addCompletions(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		for name, f := range completions {
			if cmd.Flags().Lookup(name) == nil {
				continue
			}
			if cmd.Name() == "synth" && name == "gpu" {
				f = values(synthCards...)
			}
			if _, set := cmd.GetFlagCompletionFunc(name); set {
				continue
			}
			if err := cmd.RegisterFlagCompletionFunc(name, f); err != nil {
				panic(err) // the flag exists and has no completion yet
			}
		}
	}
}

func values(list ...string) cobra.CompletionFunc { return fixed(func() []string { return list }) }

func fixed(list func() []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return list(), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeCard offers the cards of the embedded catalogue, and a card's slices
// once its name and a colon are typed. Names are offered without spaces and
// brackets, which shells would have to quote, and in lower case to those who type so: Find
// takes them all.
func completeCard(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	offer := func(name string) string {
		name = strings.NewReplacer(" (", "-", " ", "-", ")", "").Replace(name)
		if typed == strings.ToLower(typed) && typed != "" {
			name = strings.ToLower(name)
		}
		return name
	}
	var out []string
	if card, _, ok := strings.Cut(typed, ":"); ok {
		c, err := gpus.Find(card)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, p := range c.Profiles {
			out = append(out, card+":"+p.Name)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	for _, c := range gpus.All() {
		if _, _, ok := c.Usable(); ok {
			out = append(out, offer(c.Name))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func torchVersions() []string {
	var out []string
	for minor := conf.Latest.Minor; minor >= 0; minor-- {
		out = append(out, fmt.Sprintf("%d.%d", conf.Latest.Major, minor))
	}
	return out
}

// completePolicy offers the names of allocators, with their descriptions.
func completePolicy(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, r := range policies.Registered() {
		out = append(out, cobra.CompletionWithDesc(r.Name, r.Doc))
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeConf offers the keys of the release that are not in the string yet.
func completeConf(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	var used []string
	for part := range strings.SplitSeq(before, ",") {
		key, _, _ := strings.Cut(part, ":")
		used = append(used, key)
	}
	v := conf.Latest
	if f := cmd.Flags().Lookup("torch"); f != nil {
		if asked, err := conf.ParseVersion(f.Value.String()); err == nil {
			v = asked
		}
	}
	var out []string
	for _, k := range conf.Keys() {
		gone := k.Until != (conf.Version{}) && !k.Until.AtLeast(v.Major, v.Minor)
		if k.Alias == "" && !gone && v.AtLeast(k.Since.Major, k.Since.Minor) && !slices.Contains(used, k.Name) {
			out = append(out, before+k.Name+":")
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeAlert offers what an alert can be about.
func completeAlert(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, n := range planner.AlertNames() {
		out = append(out, cobra.CompletionWithDesc(n[0], n[1]))
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeModel offers the built-in models; files are YAML descriptions.
func completeModel(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, m := range synth.Models() {
		out = append(out, cobra.CompletionWithDesc(m.Name, m.What))
	}
	return out, cobra.ShellCompDirectiveDefault
}
