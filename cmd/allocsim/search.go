package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"allocsim/planner"
)

// checkSearch checks the flags that steer a search, where the command has them
// and they were given.
func checkSearch(cmd *cobra.Command, o *planner.TuneOptions) error {
	given := cmd.Flags().Changed
	switch {
	case given("budget") && o.Budget < 1:
		return fmt.Errorf("--budget %d: give the number of configurations to simulate, 1 or more", o.Budget)
	case given("tolerance") && !(o.Tolerance >= 0 && o.Tolerance < 1):
		return fmt.Errorf("--tolerance %v: give a share from 0 up to 1, such as 0.02", o.Tolerance)
	}
	if given("tolerance") && o.Tolerance == 0 {
		o.Tolerance = math.SmallestNonzeroFloat64 // 0 asks planner for its default
	}
	return nil
}
