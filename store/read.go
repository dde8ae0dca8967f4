package store

// viewer is what Read and Find need of a Store.
type viewer interface {
	View(fn func(*Tx) error) error
}

// Read returns what fn reads, under the rules of View.
func Read[T any](s viewer, fn func(*Tx) (T, error)) (v T, err error) {
	err = s.View(func(tx *Tx) (err error) {
		v, err = fn(tx)
		return err
	})
	return v, err
}

// Find returns the one record that fn looks for, and whether there is one,
// under the rules of View.
func Find[T any](s viewer, fn func(*Tx) (T, bool, error)) (v T, found bool, err error) {
	err = s.View(func(tx *Tx) (err error) {
		v, found, err = fn(tx)
		return err
	})
	return v, found, err
}
