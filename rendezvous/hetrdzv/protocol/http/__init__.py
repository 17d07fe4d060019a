"""The API as such: its routes, its versions, and connections that notice when the other end is gone."""
