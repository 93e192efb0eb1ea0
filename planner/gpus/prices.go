package gpus

import (
	"fmt"
	"io"
	"math"
	"strconv"
)

// Price is what a card costs its user. The catalogue has no prices of its own:
// they differ by seller and by week.
type Price struct {
	Amount float64 // ≥ 0
	Unit   string  // as the file gives it, such as "USD/h"; may be empty
}

// Prices are a user's prices by card name (Card.Name, slices too).
type Prices map[string]Price

// LoadPrices reads a CSV file with the columns name, price and, optionally,
// unit. Names are looked up as by Find, so that "h100" prices the card it
// means. source names the file in errors, which also give the line. All prices
// must have the same unit: they are there to be compared.
func (c *Catalogue) LoadPrices(r io.Reader, source string) (Prices, error) {
	prices := make(Prices)
	var unit string
	err := readCSV(r, source, []string{"name", "price", "unit"}, []string{"name", "price"}, func(row row) error {
		card, err := c.Find(row.text("name"))
		if err != nil {
			return err
		}
		amount, err := strconv.ParseFloat(row.text("price"), 64)
		if err != nil || !(amount >= 0) || math.IsInf(amount, 0) {
			return fmt.Errorf("price %q is not a number ≥ 0", row.text("price"))
		}
		if _, twice := prices[card.Name]; twice {
			return fmt.Errorf("%s has a price already", card.Name)
		}
		u := row.text("unit")
		if len(prices) > 0 && u != unit {
			return fmt.Errorf("unit %q differs from %q of the lines before; prices must be comparable", u, unit)
		}
		unit = u
		prices[card.Name] = Price{Amount: amount, Unit: u}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return prices, nil
}
