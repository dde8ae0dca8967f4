package store

// The families whose key is one gid and whose value is JSON share these.

func putByID[T any](tx *Tx, bucket, id string, v T) error {
	b, err := tx.bucket(bucket)
	if err != nil {
		return err
	}
	key, err := idKey("gid", id)
	if err != nil {
		return err
	}
	return tx.putRecord(b, key, v)
}

func getByID[T any](tx *Tx, bucket, id string) (v T, ok bool, err error) {
	b, err := tx.bucket(bucket)
	if err != nil {
		return v, false, err
	}
	key, err := idKey("gid", id)
	if err != nil {
		return v, false, err
	}
	value := b.Get(key)
	if value == nil {
		return v, false, nil
	}
	err = decode(bucket, value, &v)
	return v, err == nil, err
}

func allByID[T any](tx *Tx, bucket string) ([]T, error) {
	b, err := tx.bucket(bucket)
	if err != nil {
		return nil, err
	}
	var all []T
	err = b.ForEach(func(_, value []byte) error {
		var v T
		if err := decode(bucket, value, &v); err != nil {
			return err
		}
		all = append(all, v)
		return nil
	})
	return all, err
}

func deleteByID(tx *Tx, bucket, id string) error {
	b, err := tx.bucket(bucket)
	if err != nil {
		return err
	}
	key, err := idKey("gid", id)
	if err != nil {
		return err
	}
	_, err = tx.delete(b, key)
	return err
}
